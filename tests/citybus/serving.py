"""A real `citybus serve` for tests."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

CITYBUS = [sys.executable, "-m", "citybus"]
WAIT_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Serving:
    """A `citybus serve` on ports of its own, and what it has said so far."""

    def __init__(self, model: Path, *arguments: str) -> None:
        self.address, admin, self.executor = (f"127.0.0.1:{free_port()}" for _ in range(3))
        addresses = (f"--listen={self.address}", f"--admin-listen={admin}", f"--executor-listen={self.executor}")
        self.token = model.parent / "state" / "citybus" / f"executor-{self.executor.rpartition(':')[2]}.token"
        limits = ("--kv-cache-memory=16", "--num-threads=1")
        self.process = subprocess.Popen(
            [*CITYBUS, "serve", f"--model={model}", *addresses, *limits, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ
            | {"http_proxy": "http://127.0.0.1:1"}  # is for the web, and must not be asked
            | {"XDG_STATE_HOME": str(model.parent / "state")},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(map(str.rstrip, self.process.stdout))

    def says(self, pattern: str, times: int = 1) -> None:
        """Wait until this many lines match."""
        until(lambda: sum(re.search(pattern, line) is not None for line in self.lines) >= times, lambda: self.lines)

    def children(self) -> dict[str, int]:
        """Pid of each service that runs."""
        found: dict[str, int] = {}
        for pid in map(int, Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()):
            command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            found.update({name: pid for name in ("executor_svc", "scheduler_svc") if name in command})
        return found

    def end(self, signum: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(signum)
        return self.process.wait(timeout=WAIT_S)

    def close(self) -> None:
        self.process.kill()
        self._reader.join()
        with self.process:  # closes the pipe
            pass


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
