"""One service as a child process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from citybus.async_client import AsyncClient
from citybus.errors import Unavailable
from citybus.processes import child_command
from citybus.supervisor.log_lines import LogLine, parse

Say = Callable[[str], None]
"""Tells the user a line."""

_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Service:
    """What to run: a Python module with its arguments, healthy once `address` ("host:port") says so.

    `grace_s` is how long it may take to end after SIGTERM, in seconds.
    """

    name: str
    module: tuple[str, ...]
    address: str
    grace_s: float


class Child:
    """A service's process, of which there is at most one at a time. It never outlives this process.

    It is in a process group of its own, so that Ctrl-C in the terminal reaches the supervisor alone.
    """

    def __init__(self, service: Service, say: Say, *, verbose: bool) -> None:
        self.service = service
        self.last_words = ""
        self._held = ""
        self._say = say
        self._verbose = verbose
        self._process: asyncio.subprocess.Process | None = None

    async def run(self) -> int:
        """Run it once; returns the exit code (negative: the signal that ended it)."""
        self.last_words = self._held = ""
        self._process = await asyncio.create_subprocess_exec(
            *child_command(self.service.module),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_LINE_BYTES,
            env=os.environ | {"GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "NONE")},  # its lines are not ours
            process_group=0,
        )
        await self._relay(self._process.stdout)
        return await self._process.wait()

    async def until_healthy(self) -> None:
        """Return once the service says that it is healthy."""
        async with AsyncClient(self.service.address, keepalive=None) as client:
            while True:
                with contextlib.suppress(Unavailable):
                    return await client.wait_ready()

    async def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL where that takes longer than its grace."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.service.grace_s):
                await self._ended()
        except TimeoutError:
            self._say(f"the {self.service.name} did not end within {self.service.grace_s:g} s: killing it")
            self.send(signal.SIGKILL)
            await self._ended()

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, where it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signum)

    async def _ended(self) -> None:
        if self._process is not None:
            await self._process.wait()

    async def _relay(self, lines: asyncio.StreamReader | None) -> None:
        """Show what it writes, where it matters."""
        while lines is not None:
            try:
                line = (await lines.readline()).decode("utf-8", "replace")
            except ValueError:  # longer than _MAX_LINE_BYTES
                continue
            if not line:
                return
            self._take(parse(line.rstrip().removeprefix(f"{self.service.name}: ")))

    def _take(self, line: LogLine) -> None:
        """Show a line of the log at once, and a plain one when the next line comes: the last one says why it ended."""
        if not line.text or not (line.matters or self._verbose):
            return
        if self._held:
            self._say(f"{self.service.name}: {self._held}")
        self.last_words, self._held = line.text, line.text if line.is_plain else ""
        if not line.is_plain:
            self._say(f"{self.service.name}: {line.text}")
