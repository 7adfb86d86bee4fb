"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.citybus.scripted_server import ScriptedServer, serving
from tests.citybus.stage import Stage


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


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return Stage(tmp_path / "journal")
