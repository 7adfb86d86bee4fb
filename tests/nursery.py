"""Starts services without their imports, which are most of a start: `python -m tests.nursery MODULE` has made them, and
forks a service as often as it is asked to.

A line of JSON comes in for each request, and one goes out that answers it. At the end of the requests, or of the
process that made them, whatever was forked is killed.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LATE_IMPORTS = {"executor_svc": ["executor_svc.startup"], "scheduler_svc": []}
"""What a service imports when it has read its settings."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
"""Read when torch is imported."""


class Forked:
    """A service that was forked; what `subprocess.Popen` has too does the same here."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.exit_status(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return status

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, signum)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks one kind of service."""

    def __init__(self, module: str) -> None:
        self._one_at_a_time = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery", module],
            cwd=ROOT,
            env=os.environ | ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def fork(self, arguments: Sequence[str], log: Path) -> Forked:
        """A service with these arguments, whose stderr is appended to `log`."""
        return Forked(self, self._ask({"arguments": list(arguments), "log": str(log)}))

    def exit_status(self, pid: int) -> int | None:
        """None while it runs. It can be asked for until it was told."""
        status: int | None = self._ask({"pid": pid})
        return status

    def _ask(self, request: dict[str, Any]) -> Any:
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None and answered is not None
        with self._one_at_a_time:
            asked.write(json.dumps(request).encode() + b"\n")
            asked.flush()
            return json.loads(answered.readline())


@functools.cache
def nursery_of(module: str) -> Nursery:
    """The one of this test process."""
    return Nursery(module)


def main(module: str) -> int:
    service = importlib.import_module(f"{module}.__main__")
    for name in LATE_IMPORTS[module]:
        importlib.import_module(name)
    running: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "pid" in request:
            answer = _exit_status(request["pid"], running)
        elif (answer := os.fork()) == 0:
            _redirect(Path(request["log"]))
            sys.argv[1:] = request["arguments"]
            status: int = service.main()
            return status
        else:
            running.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return 0


def _exit_status(pid: int, running: set[int]) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    running.discard(found)
    return os.waitstatus_to_exitcode(status) if found else None


def _redirect(log: Path) -> None:
    with log.open("ab") as stderr, Path(os.devnull).open("r+b") as nothing:
        os.dup2(stderr.fileno(), sys.stderr.fileno())
        os.dup2(nothing.fileno(), sys.stdin.fileno())
        os.dup2(nothing.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
