"""Starts services, keeps them running, and ends them in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence

from citybus.supervisor.child import Say, Service
from citybus.supervisor.keeper import Keeper, cancel

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs `services` until a signal: the first one drains them in reverse order, the second one kills them.

    To be made and run in the main thread. A service that dies while the others run is started again, since they
    survive that; one that dies before all were healthy once, or again and again, is a `Failure`.
    """

    def __init__(self, services: Sequence[Service], say: Say, *, start_timeout_s: float, verbose: bool) -> None:
        self._up = asyncio.Event()
        self._keepers = [Keeper(service, say, self._up, verbose=verbose) for service in services]
        self._say = say
        self._start_timeout_s = start_timeout_s
        self._stop = asyncio.Event()

    async def run(self, when_up: Callable[[], Awaitable[None]]) -> None:
        """Start everything, call `when_up` once it is healthy, and return after a signal and the drain.

        Raises `Failure` where a service cannot be kept running, and what `when_up` raises; nothing runs then.
        """
        self._listen_to_signals()
        stop = asyncio.create_task(self._stop.wait())
        start = asyncio.create_task(self._come_up(when_up))
        keepers = [asyncio.create_task(keeper.keep()) for keeper in self._keepers]
        pending = {stop, start, *keepers}
        try:
            while not stop.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            self._stop.set()
            await cancel(start)
            for keeper in reversed(self._keepers):
                await keeper.stop()
            await cancel(stop, *keepers)

    async def replace(self, name: str, tell: Say) -> None:
        """Replace the process of the service `name` by a new one; `tell` hears how it goes. Raises `Failure`."""
        await next(keeper for keeper in self._keepers if keeper.service.name == name).replace(tell)

    async def _come_up(self, when_up: Callable[[], Awaitable[None]]) -> None:
        for keeper in self._keepers:
            await keeper.wait_healthy(self._start_timeout_s)
        self._up.set()
        await when_up()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in _SIGNALS:
            loop.add_signal_handler(signum, self._on_signal)

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            self._say("draining: requests that run are finished; Ctrl-C again ends them at once")
            self._stop.set()
            return
        for keeper in self._keepers:
            keeper.kill()
