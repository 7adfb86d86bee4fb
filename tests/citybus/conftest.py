"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.citybus.scripted_server import ScriptedServer, serving


@dataclass(frozen=True)
class Served:
    """A scripted server and where it listens."""

    address: str
    server: ScriptedServer


@pytest.fixture
def served() -> Iterator[Served]:
    server = ScriptedServer()
    with serving(server) as address:
        yield Served(address, server)
