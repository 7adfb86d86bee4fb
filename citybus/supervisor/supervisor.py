"""Starts services, restarts the ones that die, and ends them in order."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from citybus.failure import Failure
from citybus.supervisor.child import Child, Say, Service

MAX_DEATHS = 3
"""A service that dies this often within `DEATHS_WINDOW_S` seconds is not started again."""
DEATHS_WINDOW_S = 60.0
FIRST_BACKOFF_S = 0.5
"""Seconds before the first restart; each further one within the window waits twice as long."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs `services` until a signal: the first one drains them in reverse order, the second one kills them.

    To be made and run in the main thread. A service that dies while the others run is started again, since they
    survive that; one that dies before all were healthy once, or again and again, is a `Failure`.
    """

    def __init__(self, services: Sequence[Service], say: Say, *, start_timeout_s: float, verbose: bool) -> None:
        self._children = [Child(service, say, verbose=verbose) for service in services]
        self._say = say
        self._start_timeout_s = start_timeout_s
        self._healthy = {child: asyncio.Event() for child in self._children}
        self._stop = asyncio.Event()
        self._up = False

    async def run(self, when_up: Callable[[], Awaitable[None]]) -> None:
        """Start everything, call `when_up` once it is healthy, and return after a signal and the drain.

        Raises `Failure` where a service cannot be kept running, and what `when_up` raises; nothing runs then.
        """
        self._listen_to_signals()
        stop = asyncio.create_task(self._stop.wait())
        start = asyncio.create_task(self._come_up(when_up))
        keepers = [asyncio.create_task(self._keep(child)) for child in self._children]
        pending = {stop, start, *keepers}
        try:
            while not stop.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            self._stop.set()
            await _cancel(start)
            for child in reversed(self._children):
                await child.stop()
            await _cancel(stop, *keepers)

    async def _come_up(self, when_up: Callable[[], Awaitable[None]]) -> None:
        for child, healthy in self._healthy.items():
            try:
                async with asyncio.timeout(self._start_timeout_s):
                    await healthy.wait()
            except TimeoutError:
                raise Failure(
                    f"the {child.service.name} was not healthy within {self._start_timeout_s:g} s"
                    f"{_quote(child.last_words)}: give it more with --start-timeout, or see --verbose"
                ) from None
        self._up = True
        await when_up()

    async def _keep(self, child: Child) -> None:
        """Run a service again and again, until the stop. Raises `Failure` where that is hopeless."""
        deaths: list[float] = []
        while not self._stop.is_set():
            announcement = asyncio.create_task(self._announce(child))
            try:
                code = await child.run()
            finally:
                await _cancel(announcement)
            if self._stop.is_set():
                return
            now = time.monotonic()
            deaths = [*(death for death in deaths if now - death < DEATHS_WINDOW_S), now]
            self._judge(child, code, len(deaths))
            await asyncio.sleep(FIRST_BACKOFF_S * 2 ** (len(deaths) - 1))

    def _judge(self, child: Child, code: int, deaths: int) -> None:
        """Say that a service has ended and is started again. Raises `Failure` where it is not."""
        ended = f"the {child.service.name} ended{'' if self._up else ' while it started'} ({_how(code)})"
        if not self._up:
            raise Failure(f"{ended}{_quote(child.last_words)}")
        if deaths >= MAX_DEATHS:
            raise Failure(f"{ended}, {deaths} times within {DEATHS_WINDOW_S:g} s{_quote(child.last_words)}")
        self._say(f"{ended}{_quote(child.last_words)}: starting it again")

    async def _announce(self, child: Child) -> None:
        started = time.monotonic()
        await child.until_healthy()
        self._say(f"the {child.service.name} is healthy after {time.monotonic() - started:.1f} s")
        self._healthy[child].set()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in _SIGNALS:
            loop.add_signal_handler(signum, self._on_signal)

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            self._say("draining: requests that run are finished; Ctrl-C again ends them at once")
            self._stop.set()
            return
        for child in self._children:
            child.send(signal.SIGKILL)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _quote(words: str) -> str:
    return f": {words}" if words else ""
