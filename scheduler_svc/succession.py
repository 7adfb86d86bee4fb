"""How a scheduler begins with what the one before it left, and a session with what the executor holds."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import structlog

from common.errors import InvalidRequest
from common.metrics import SchedulerMetrics
from scheduler_svc.core.request import NeverFits, unserved
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, Status
from scheduler_svc.delivery import Delivery
from scheduler_svc.events import EventBus, HandOver
from scheduler_svc.journal import Journal
from scheduler_svc.reach import Reached
from scheduler_svc.restored import Restored

log = structlog.get_logger()


def take_in(core: Scheduler, restored: list[Restored], delivery: Delivery, journal: Journal) -> None:
    """Queue the requests of the process before this one; who does not fit any more ends with an error."""
    for each in restored:
        try:
            core.add(each.request, each.tokens, each.beginning)
        except NeverFits as error:
            for index, sink in enumerate(each.sinks):
                journal.end(each.request.sequence_id + index, unserved(str(error)))
                sink.fail(InvalidRequest(str(error)))
        else:
            delivery.add(each.request.sequence_id, each.sinks)


def resume(core: Scheduler, reached: Reached, restored: list[Restored], delivery: Delivery) -> None:
    """Go on from what the executor holds; whose text had stopped already ends."""
    now = time.monotonic()
    delivery.publish(core, core.resume(reached.info, reached.session.term, reached.held, now))
    for each in restored:
        if each.stop is not None:
            delivery.publish(core, core.stop(each.request.sequence_id, each.stop.num_tokens, now))
    state = core.snapshot()
    log.info(
        "executor connected",
        model=reached.info.model,
        term=reached.session.term,
        num_blocks=reached.info.num_blocks,
        resident=len(reached.held.sequences),
        running=state.running,
        waiting=state.waiting,
        cached_blocks=state.pool.cached,
    )


def hand_over_of(core: Scheduler, reached: Reached, known: list[Sequence]) -> HandOver:
    """What `resume` has made of the sequences that were `known` before it."""
    adopted = sum(sequence.resident for sequence in known)
    queued = [sequence for sequence in known if sequence.status is Status.WAITING]
    return HandOver(
        term=reached.session.term,
        adopted_sequences=adopted,
        queued_sequences=len(queued),
        recomputed_tokens=sum(one.view.num_uncached_tokens for one in queued if one.num_output_tokens),
        cached_blocks=core.snapshot().pool.cached,
        dropped_sequences=len(reached.held.sequences) - adopted,
    )


def announce_hand_over(metrics: SchedulerMetrics, events: EventBus) -> Callable[[HandOver], None]:
    """What has a hand-over known: by log, metric and event."""

    def on_hand_over(found: HandOver) -> None:
        metrics.hand_over.total.inc()
        metrics.hand_over.adopted_sequences.set(found.adopted_sequences)
        metrics.hand_over.recomputed_tokens.set(found.recomputed_tokens)
        log.info("hand-over", **dataclasses.asdict(found))
        events.publish(found)

    return on_hand_over
