"""Keeps one service running: what dies is started again, and a process can be replaced by the next one."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine
from typing import Any

from citybus.failure import Failure
from citybus.supervisor.child import Child, Say, Service

MAX_DEATHS = 3
"""A service that dies this often within `DEATHS_WINDOW_S` seconds is not started again."""
DEATHS_WINDOW_S = 60.0
FIRST_BACKOFF_S = 0.5
"""Seconds before the first restart; each further one within the window waits twice as long."""
STANDBY_S = 60.0
"""How long a new process may take to stand by, and again to be healthy after that, in seconds."""
LET_GO_S = 10.0
"""How long a process may take to let go, in seconds; it has nothing to wait for."""


class NotStarted(Failure):
    """A process ended before the server was up."""


class Keeper:
    """Runs a service again and again, until stopped. `up` is set once all services were healthy.

    Before that, an end is final. Afterwards a death is answered by a restart, up to `MAX_DEATHS` of them; a healthy
    process that ends with 0 has been told to by somebody, so that the next one begins at once and nothing is counted.
    """

    def __init__(self, service: Service, say: Say, up: asyncio.Event, *, verbose: bool) -> None:
        self.service = service
        self.healthy = asyncio.Event()
        self._stands_by = asyncio.Event()
        self._say = say
        self._up = up
        self._verbose = verbose
        self._current = self._child()
        self._next: Child | None = None
        self._deaths: list[float] = []
        self._replacing = asyncio.Lock()
        self._stopping = False

    async def wait_healthy(self, within_s: float) -> None:
        """Return once it is healthy. Raises `Failure` where it neither is nor stands by within `within_s` seconds."""
        if not await _first(self.healthy.wait(), self._stands_by.wait(), within_s=within_s):
            raise Failure(
                f"the {self.service.name} was not healthy within {within_s:g} s{quote(self._current.last_words)}: give "
                "it more with --start-timeout, or see --verbose"
            )
        await self.healthy.wait()

    async def keep(self) -> None:
        """Keep it running until `stop`. Raises `Failure` where that is hopeless."""
        while not self._stopping:
            await self._current.start()
            code = await self._follow(self._announce_health(self._current), self._announce_standby(self._current))
            while self._next is not None:
                self._current, self._next = self._next, None
                code = await self._follow(self._announce_health(self._current))
            if self._stopping:
                return
            await asyncio.sleep(self._judge(code))
            self._current = self._child()

    async def replace(self, tell: Say) -> None:
        """Have a new process take over from the one that runs; `tell` hears how it goes.

        Raises `Failure`: before the old one has let go, that one goes on untouched.
        """
        if self._replacing.locked():
            raise Failure("another upgrade is under way: wait for it")
        async with self._replacing:
            old, new = self._current, self._child()
            self._check_replaceable(old)
            await self._bring_up_beside(old, new, tell)
            began = time.monotonic()
            await old.end(signal.SIGUSR1, LET_GO_S)
            await self._until_healthy(new)
            how = f"version {old.version} -> {new.version}, with a pause of {time.monotonic() - began:.2f} s"
            self._say(f"a new {self.service.name} has taken over: {how}")
            tell(how)

    async def stop(self) -> None:
        """End what runs, who stands by first: it would take over."""
        self._stopping = True
        if self._next is not None:
            await self._next.end(signal.SIGKILL, LET_GO_S)
        await self._current.stop()

    def kill(self) -> None:
        """End it at once."""
        for child in (self._next, self._current):
            if child is not None:
                child.send(signal.SIGKILL)

    async def _follow(self, *announcements: Coroutine[Any, Any, None]) -> int:
        """Make the announcements as the process goes, and return its exit code once it has ended."""
        tasks = [asyncio.create_task(announcement) for announcement in announcements]
        try:
            return await self._current.ended()
        finally:
            await cancel(*tasks)

    async def _announce_standby(self, child: Child) -> None:
        await child.standing_by.wait()
        self._say(
            f"the {self.service.name} stands by: another one holds the journal {child.journal}, and this one serves "
            "once that one has ended; --journal names another file"
        )
        self._stands_by.set()

    async def _announce_health(self, child: Child) -> None:
        began = time.monotonic()
        await child.watch_health()
        self._say(f"the {self.service.name} is healthy after {time.monotonic() - began:.1f} s")
        self.healthy.set()

    def _judge(self, code: int) -> float:
        """Seconds until the next start, of which the user is told. Raises `Failure` where there is none."""
        ended = f"the {self.service.name} ended{'' if self._up.is_set() else ' while it started'} ({_how(code)})"
        words = quote(self._current.last_words)
        if code in self.service.final_codes:
            raise Failure(f"{ended}{words}: {self.service.final_codes[code]}")
        if not self._up.is_set():
            raise NotStarted(f"{ended}{words}")
        if code == 0 and self._current.healthy.is_set():
            self._say(f"the {self.service.name} was told to end: starting it again")
            return 0.0
        now = time.monotonic()
        self._deaths = [*(death for death in self._deaths if now - death < DEATHS_WINDOW_S), now]
        if len(self._deaths) >= MAX_DEATHS:
            raise Failure(f"{ended}, {len(self._deaths)} times within {DEATHS_WINDOW_S:g} s{words}")
        self._say(f"{ended}{words}: starting it again")
        return float(FIRST_BACKOFF_S * 2 ** (len(self._deaths) - 1))

    def _check_replaceable(self, old: Child) -> None:
        if not self.service.can_stand_by:
            raise Failure(
                f"the {self.service.name} has no journal, so that nobody can take over from it: restart 'citybus "
                "serve' without '--journal none' to upgrade it from then on"
            )
        served = old.healthy.is_set() and old.runs  # else it may not have the lock, and the new one would take it
        if self._stopping or not served:
            raise Failure(f"the {self.service.name} is being started or stopped: try again in a moment")

    async def _bring_up_beside(self, old: Child, new: Child, tell: Say) -> None:
        """Start the new process and return once it stands by, or the old one has ended by itself. Raises `Failure`."""
        try:
            await new.start()
            self._check_replaceable(old)
            self._next = new
            tell(f"the new {self.service.name} starts")
            await self._until_standing_by(old, new)
            tell(f"the new {self.service.name} stands by")
        except BaseException:
            if self._current is not new:
                self._next = None
                await new.end(signal.SIGKILL, LET_GO_S)
            raise

    async def _until_standing_by(self, old: Child, new: Child) -> None:
        if not await _first(new.standing_by.wait(), new.ended(), old.ended(), within_s=STANDBY_S):
            raise Failure(
                f"the new {self.service.name} did not stand by within {STANDBY_S:g} s: the old one goes on; "
                "see 'citybus serve --verbose', and note that a --log-level above info hides who stands by"
            )
        if not new.runs and old.runs:
            raise Failure(
                f"the new {self.service.name} ended while it started ({_how(await new.ended())})"
                f"{quote(new.last_words)}: the old one goes on"
            )

    async def _until_healthy(self, new: Child) -> None:
        if not await _first(new.healthy.wait(), new.ended(), within_s=STANDBY_S):
            raise Failure(f"the new {self.service.name} has taken over, and was not healthy within {STANDBY_S:g} s")
        if not new.healthy.is_set():
            raise Failure(
                f"the new {self.service.name} has taken over and ended ({_how(await new.ended())})"
                f"{quote(new.last_words)}: 'citybus serve' starts it again where it can"
            )

    def _child(self) -> Child:
        return Child(self.service, self._say, verbose=self._verbose)


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _first(*what: Any, within_s: float) -> bool:
    """Whether any of these coroutines returned in time."""
    tasks = [asyncio.ensure_future(each) for each in what]
    try:
        done, _ = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        await cancel(*tasks)


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def quote(words: str) -> str:
    """Last words, as the end of a sentence."""
    return f": {words}" if words else ""
