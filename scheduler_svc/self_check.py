"""The scheduler's look at itself while it has nothing to do."""

from __future__ import annotations

import structlog

from scheduler_svc.core.scheduler import Scheduler

log = structlog.get_logger()


def check_idle(core: Scheduler) -> None:
    """Hold a core without work against the design's invariants; a contradiction, a fault of ours, is logged."""
    try:
        core.check_invariants()
    except AssertionError as error:
        log.error("the scheduler's state contradicts itself", reason=str(error))
