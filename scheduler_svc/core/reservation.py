"""What of the seats and the pool nobody else gets."""

from __future__ import annotations

from scheduler_svc.core.policy import Reservation
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Status


def reservation(core: Scheduler) -> Reservation:
    """Seats and blocks that are held, or more where the policy sets more aside."""
    state = core.snapshot()
    running = tuple(sequence.view for sequence in core.live() if sequence.status is Status.RUNNING)
    return core.policy.reservation(running) or Reservation(state.running, state.pool.held)
