"""Higher priorities first, and nobody waits for ever."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scheduler_svc.core.policy import Policy, SequenceView, StepView


@dataclass(frozen=True, slots=True)
class PriorityParameters:
    """How long the lower have patience.

    Attributes:
        ageing_s: waiting this long is worth one level of priority, so that a stream of urgent work only delays the
            rest, in seconds.
    """

    ageing_s: float = 10.0

    def __post_init__(self) -> None:
        if self.ageing_s <= 0:
            raise ValueError("ageing_s must be more than 0")


class Priority(Policy):
    """Boards by priority plus age; the lowest, youngest sequence gives up its blocks first."""

    name = "priority"
    Parameters = PriorityParameters
    parameters: PriorityParameters

    def admission_order(self, waiting: Sequence[SequenceView], step: StepView, now: float) -> Iterator[SequenceView]:
        heap = [(-self._urgency(view, now), view.sequence_id, view) for view in waiting]
        heapq.heapify(heap)
        while heap:
            yield heapq.heappop(heap)[2]

    def victim(self, running: Sequence[SequenceView], now: float) -> SequenceView:
        return min(running, key=lambda view: (self._urgency(view, now), -view.sequence_id))

    def _urgency(self, view: SequenceView, now: float) -> float:
        return view.priority + (now - view.arrival) / self.parameters.ageing_s
