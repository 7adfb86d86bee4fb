"""One process of a service, as a child of this one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from citybus.async_client import AsyncClient
from citybus.connection import ADMIN_TOKEN_VARIABLE, API_KEY_VARIABLE
from citybus.errors import Unavailable
from citybus.processes import child_command
from citybus.supervisor.log_lines import LogLine, parse
from citybus.tls import Tls

Say = Callable[[str], None]
"""Tells the user a line."""

_MAX_LINE_BYTES = 1 << 20
_SECRETS_OF_CLIENTS = (ADMIN_TOKEN_VARIABLE, API_KEY_VARIABLE)


@dataclass(frozen=True, slots=True)
class Service:
    """What to run: a Python module with its arguments, healthy once `address` ("host:port") says so.

    `grace_s` is how long it may take to end after SIGTERM, in seconds. `final_codes` are exit codes after which it must
    not be started again, each with what to do instead. `can_stand_by`: a second process logs "standby" and waits until
    the first one has ended, which SIGUSR1 makes it do at once. `tls`: how to connect where it has a certificate.
    """

    name: str
    module: tuple[str, ...]
    address: str
    grace_s: float
    final_codes: Mapping[int, str] = field(default_factory=dict)
    can_stand_by: bool = False
    tls: Tls | None = None


class Child:
    """A process that runs once. It never outlives this one.

    It is in a process group of its own, so that Ctrl-C in the terminal reaches the supervisor alone.
    """

    def __init__(self, service: Service, say: Say, *, verbose: bool) -> None:
        self.service = service
        self.last_words = ""
        self.version = "unknown"
        self.healthy = asyncio.Event()
        self.standing_by = asyncio.Event()
        self.journal = ""
        self._held = ""
        self._say = say
        self._verbose = verbose
        self._process: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[int] | None = None

    @property
    def runs(self) -> bool:
        """Whether it has begun and not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Begin."""
        self._process = await asyncio.create_subprocess_exec(
            *child_command(self.service.module),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_LINE_BYTES,
            env=child_environment(),
            process_group=0,
        )
        self._life = asyncio.create_task(self._live(self._process))

    async def ended(self) -> int:
        """The exit code, once it has ended and all it wrote is shown (negative: the signal that ended it)."""
        assert self._life is not None, "it was not started"
        return await asyncio.shield(self._life)

    async def watch_health(self) -> None:
        """Wait until the service says that it is healthy, and note it."""
        async with AsyncClient(self.service.address, keepalive=None, tls=self.service.tls) as client:
            while not self.healthy.is_set():
                with contextlib.suppress(Unavailable):
                    await client.wait_ready()
                    self.healthy.set()

    async def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL where that takes longer than its grace."""
        await self.end(signal.SIGTERM, self.service.grace_s)

    async def end(self, signum: signal.Signals, within_s: float) -> None:
        """Send a signal that ends it, and SIGKILL where that takes longer than `within_s` seconds."""
        self.send(signum)
        try:
            async with asyncio.timeout(within_s):
                await self._gone()
        except TimeoutError:
            self._say(f"the {self.service.name} did not end within {within_s:g} s: killing it")
            self.send(signal.SIGKILL)
            await self._gone()

    def send(self, signum: signal.Signals) -> None:
        """Send a signal, where it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signum)

    async def _gone(self) -> None:
        if self._process is not None:
            await self._process.wait()

    async def _live(self, process: asyncio.subprocess.Process) -> int:
        await self._relay(process.stdout)
        return await process.wait()

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
        if line.event == "standby":
            self.journal = str(line.values.get("journal", ""))
            self.standing_by.set()
        if line.event == "starting":
            self.version = str(line.values.get("version", self.version))
        if not line.text or not (line.matters or self._verbose):
            return
        if self._held:
            self._say(f"{self.service.name}: {self._held}")
        self.last_words, self._held = line.text, line.text if line.is_plain else ""
        if not line.is_plain:
            self._say(f"{self.service.name}: {line.text}")


def child_environment() -> dict[str, str]:
    """Ours, without what is the client's; gRPC's own lines are none of a service's."""
    inherited = {name: value for name, value in os.environ.items() if name not in _SECRETS_OF_CLIENTS}
    return {"GRPC_VERBOSITY": "NONE"} | inherited
