"""Ways to lose a service while an executor that stands still keeps answers from ending before."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.harness import Bus


def lose_the_scheduler(bus: Bus) -> None:
    bus.scheduler.kill()
    bus.executor.send(signal.SIGCONT)
    bus.scheduler.restart()


def lose_the_executor(bus: Bus) -> None:
    bus.executor.kill()
    bus.executor.restart()


def lose_both(bus: Bus) -> None:
    bus.scheduler.kill()
    lose_the_executor(bus)
    bus.scheduler.restart()


LOSSES: dict[str, Callable[[Bus], None]] = {
    "scheduler": lose_the_scheduler,
    "executor": lose_the_executor,
    "both": lose_both,
}
