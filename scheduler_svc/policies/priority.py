"""Higher priorities first, and nobody waits for ever."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from scheduler_svc.core.policy import Policy, SequenceView

AGEING_SECONDS = 10.0
"""Waiting this long is worth one level of priority, so that a stream of urgent work only delays the rest."""


class Priority(Policy):
    """Boards by priority plus age; the lowest, youngest sequence gives up its blocks first."""

    name = "priority"

    def admission_order(self, waiting: Sequence[SequenceView], now: float) -> Iterator[SequenceView]:
        heap = [(-_urgency(sequence, now), sequence.sequence_id, sequence) for sequence in waiting]
        heapq.heapify(heap)
        while heap:
            yield heapq.heappop(heap)[2]

    def victim(self, running: Sequence[SequenceView], now: float) -> SequenceView:
        return min(running, key=lambda sequence: (_urgency(sequence, now), -sequence.sequence_id))


def _urgency(sequence: SequenceView, now: float) -> float:
    return sequence.priority + (now - sequence.arrival) / AGEING_SECONDS
