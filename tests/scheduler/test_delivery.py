"""The news of a sequence reach its sink and end once, however many come together."""

from __future__ import annotations

from common.resident import ResidentSequence
from common.step import Sampling
from scheduler_svc.core.adoption import Residency
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.request import FinishReason, Outcome, Request, SequenceUpdate
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.delivery import Delivery
from scheduler_svc.journal import NoJournal
from scheduler_svc.output_stream import TextStop
from scheduler_svc.policies.fcfs import Fcfs
from tests.fakes import INFO

PROMPT = (1, 2, 3)


class StopsAtTheFirst:
    """A sink whose first token completes a stop text."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def push(self, update: SequenceUpdate) -> TextStop | None:
        if update.outcome is not None:
            self.outcomes.append(update.outcome)
            return None
        return TextStop("stop", 1)

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)


def test_text_that_stops_within_tokens_nobody_had_heard_of() -> None:
    core, delivery, sink = Scheduler(INFO, GuardedPolicy(Fcfs())), Delivery(NoJournal()), StopsAtTheFirst()
    core.add(Request(1, PROMPT, Sampling(), arrival=0.0, max_tokens=9))
    delivery.add(1, [sink])
    drawn = ResidentSequence(1, (*PROMPT, 7, 8, 9), len(PROMPT), 5, (0,), Sampling(), 0)
    delivery.publish(core, core.resume(INFO, 1, Residency(4, (drawn,)), 1.0))
    (outcome,) = sink.outcomes
    assert (outcome.reason, outcome.num_output_tokens) == (FinishReason.STOP, 1)
    assert core.live() == []
    core.check_invariants()
