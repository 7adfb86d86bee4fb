"""Shortest remaining work first, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.core.policy import Policy, SequenceView, StepView


@dataclass(frozen=True, slots=True)
class ShortestFirstParameters:
    """What work is.

    Attributes:
        output_weight: work of a token that may be generated, in prompt tokens; 0 looks at prompts only.
        ageing: work forgiven for a second since arrival, in prompt tokens: bounds how long short ones delay a long one.
        boarding_share: share of a step's prefill tokens that prefills under way leave to who boards, 0 to 1.
        eldest_every: in one step of this many, the eldest prefill under way goes on first: it never stands still.
    """

    output_weight: float = 1.0
    ageing: float = 100.0
    boarding_share: float = 0.5
    eldest_every: int = 4

    def __post_init__(self) -> None:
        if self.output_weight < 0 or self.ageing < 0:
            raise ValueError("output_weight and ageing must not be less than 0")
        if not 0 <= self.boarding_share <= 1:
            raise ValueError("boarding_share must be 0 to 1")
        if self.eldest_every < 1:
            raise ValueError("eldest_every must be 1 or more")


class ShortestFirst(Policy):
    """Boards by remaining work: prompt tokens that are not cached, and the longest reply it may still give.

    A long prefill leaves part of every step to who boards, so that short prompts do not wait for its end; the one with
    the most work gives up its blocks first.
    """

    name = "shortest_first"
    Parameters = ShortestFirstParameters
    parameters: ShortestFirstParameters

    def __init__(self, parameters: ShortestFirstParameters | None = None) -> None:
        super().__init__(parameters)
        self._turn = 0

    def admission_order(self, waiting: Sequence[SequenceView], step: StepView, now: float) -> list[SequenceView]:
        return sorted(waiting, key=lambda view: self._work(view, now))

    def boarding_reserve(self, step: StepView, now: float) -> int:
        return max(0, int(self.parameters.boarding_share * (step.max_tokens - step.num_decodes)))

    def prefill_order(self, prefills: Sequence[SequenceView], now: float) -> Sequence[SequenceView]:
        self._turn = (self._turn + 1) % self.parameters.eldest_every
        if self._turn == 0:
            return prefills
        return sorted(prefills, key=lambda view: self._work(view, now))

    def victim(self, running: Sequence[SequenceView], now: float) -> SequenceView:
        return max(running, key=lambda view: (self._work(view, now), view.sequence_id))

    def _work(self, view: SequenceView, now: float) -> float:
        output = view.max_output_tokens - view.num_output_tokens
        forgiven = self.parameters.ageing * (now - view.arrival)
        return view.num_uncached_tokens + self.parameters.output_weight * output - forgiven
