"""A supervisor over two stand-ins (stand_in.py), for tests."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from citybus.supervisor.child import Service
from citybus.supervisor.supervisor import Supervisor

FIRST, SECOND = "engine", "gate"
FINAL_CODES = {5: "see who took it"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Stage:
    """Two stand-ins under a supervisor, and what was said of them."""

    journal: Path
    said: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=lambda: {FIRST: free_port(), SECOND: free_port()})

    def supervisor(
        self, first: tuple[str, ...] = (), second: tuple[str, ...] = (), *, grace_s: float = 30.0, start_s: float = 60.0
    ) -> Supervisor:
        services = [self._service(FIRST, first, grace_s), self._service(SECOND, second, grace_s)]
        return Supervisor(services, self.said.append, start_timeout_s=start_s, verbose=False)

    def _service(self, name: str, flags: tuple[str, ...], grace_s: float) -> Service:
        arguments = (str(self.ports[name]), str(self.journal), *flags)
        address = f"127.0.0.1:{self.ports[name]}"
        return Service(name, ("stand_in", *arguments), address, grace_s, FINAL_CODES, can_stand_by="--lock" in flags)

    def events(self) -> list[tuple[int, str, str]]:
        """Pid, service and what happened, in order."""
        names = {str(port): name for name, port in self.ports.items()}
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [(int(pid), names[port], what) for pid, port, what in map(str.split, lines)]

    def assert_nothing_runs(self) -> None:
        for pid, _, _ in self.events():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


async def nothing() -> None:
    pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
