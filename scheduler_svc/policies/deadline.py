"""Earliest deadline first, and no work on what cannot be in time."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_svc.core.policy import Charge, Policy, SequenceView, StepView

_SMOOTHING = 0.1
"""Weight of the newest step in the measured speeds."""

_TELLING_TOKENS = 4096
"""Prompt tokens that make up a measurement of their price."""

_DUE_EVERY = 4
"""In one step of this many, the prefill that is due first goes on, so that a long one never stands still."""

_LEAST_SHARE = 8
"""One prefill token in this many is computed, however tight the targets of the decodes are."""


@dataclass(frozen=True, slots=True)
class DeadlineParameters:
    """When a request is due: at its own time limit, or at its tenant's target where that is sooner.

    Attributes:
        first_token_s: target for the first token of a tenant that has none of its own, in seconds from arrival.
        first_token_targets: the same by tenant.
        token_s: target for each further token, in seconds.
        token_targets: the same by tenant.
        output_share: how much of the longest reply a request must have time for, 0 to 1; 0 is the first token only.
        shed: whether requests end at once that cannot be in time by their own limit.
        max_wait_s: who has waited longer boards first, in time or not, in seconds.
        boarding_share: share of a step's prefill tokens that prefills under way leave to who boards, 0 to 1.
    """

    first_token_s: float = 10.0
    first_token_targets: Mapping[str, float] = field(default_factory=dict)
    token_s: float = 0.2
    token_targets: Mapping[str, float] = field(default_factory=dict)
    output_share: float = 0.0
    shed: bool = True
    max_wait_s: float = 60.0
    boarding_share: float = 0.5

    def __post_init__(self) -> None:
        times = (self.first_token_s, *self.first_token_targets.values(), self.token_s, *self.token_targets.values())
        if min(times) <= 0 or self.max_wait_s < 0:
            raise ValueError("targets must be more than 0, and max_wait_s not less than 0")
        if not (0 <= self.output_share <= 1 and 0 <= self.boarding_share <= 1):
            raise ValueError("output_share and boarding_share must be 0 to 1")


class Deadline(Policy):
    """Boards who is due first, behind them who cannot be in time; who is due last gives up its blocks first.

    How long something takes is judged by the steps so far: prompt tokens a second, and seconds a token.
    """

    name = "deadline"
    Parameters = DeadlineParameters
    parameters: DeadlineParameters

    def __init__(self, parameters: DeadlineParameters | None = None) -> None:
        super().__init__(parameters)
        self._prompt_token_s = 0.0
        self._step_s = 0.0
        self._turn = 0
        self._last_at = 0.0  # when the step before was made, its prompt tokens, and whose they were
        self._last_prompt_tokens = 0
        self._last_ids: frozenset[int] = frozenset()

    def admission_order(self, waiting: Sequence[SequenceView], step: StepView, now: float) -> list[SequenceView]:
        hopeless = self._hopeless(waiting, now)
        return sorted(waiting, key=lambda view: self._rank(view, view.sequence_id in hopeless, now))

    def boarding_reserve(self, step: StepView, now: float) -> int:
        return max(0, int(self.parameters.boarding_share * (step.max_tokens - step.num_decodes)))

    def token_budget(self, step: StepView, now: float) -> int:
        """No more prefill than lets decodes keep the target of the default tenant."""
        most = super().token_budget(step, now)
        if not step.num_decodes or not self._prompt_token_s:
            return most
        in_time = int(self.parameters.token_s / self._prompt_token_s)
        return max(most // _LEAST_SHARE, min(most, in_time))

    def prefill_order(self, prefills: Sequence[SequenceView], now: float) -> list[SequenceView]:
        """The shortest first, so that few are half done; in one step of `_DUE_EVERY`, who is due first."""
        self._turn = (self._turn + 1) % _DUE_EVERY
        return sorted(prefills, key=(lambda view: view.num_remaining) if self._turn else self._due)

    def victim(self, running: Sequence[SequenceView], now: float) -> SequenceView:
        return max(running, key=lambda view: (self._due(view), view.sequence_id))

    def shed(self, waiting: Sequence[SequenceView], now: float) -> list[SequenceView]:
        if not self.parameters.shed:
            return []
        return [
            view
            for view in waiting
            if view.deadline is not None and not view.num_output_tokens and now + self._takes(view) > view.deadline
        ]

    def charge(self, charges: Sequence[Charge], now: float) -> None:
        prompt_tokens = sum(charge.num_tokens - charge.num_drawn for charge in charges)
        ids = frozenset(charge.sequence.sequence_id for charge in charges)
        if ids & self._last_ids and now > self._last_at:  # who computes on has not idled between the two steps
            self._learn(now - self._last_at, self._last_prompt_tokens)
        self._last_at, self._last_prompt_tokens, self._last_ids = now, prompt_tokens, ids

    def export_state(self) -> Mapping[str, object]:
        return {"prompt_token_s": self._prompt_token_s, "step_s": self._step_s}

    def import_state(self, state: Mapping[str, object]) -> None:
        self._prompt_token_s = _number(state.get("prompt_token_s"))
        self._step_s = _number(state.get("step_s"))

    def _learn(self, step_s: float, prompt_tokens: int) -> None:
        """A step that computed `prompt_tokens`, decodes aside, took `step_s` seconds."""
        self._step_s = _smoothed(self._step_s, step_s, _SMOOTHING)
        if prompt_tokens > 1:  # a step with few of them says little about their price
            weight = min(_SMOOTHING, prompt_tokens / _TELLING_TOKENS)
            self._prompt_token_s = _smoothed(self._prompt_token_s, step_s / prompt_tokens, weight)

    def _takes(self, view: SequenceView) -> float:
        """Seconds until it has what its time limit asks for, were it to board now."""
        return self._prompt_token_s * view.num_uncached_tokens + self._reply_s(view)

    def _reply_s(self, view: SequenceView) -> float:
        return self._step_s * self.parameters.output_share * (view.max_output_tokens - view.num_output_tokens)

    def _latest(self, view: SequenceView) -> float:
        """When its prompt must be computed."""
        target = self._target(view)
        return target if view.deadline is None else min(target, view.deadline - self._reply_s(view))

    def _hopeless(self, waiting: Sequence[SequenceView], now: float) -> set[int]:
        """Who is left out so that as many as possible of the others are in time (Moore 1968)."""
        hopeless: set[int] = set()
        chosen: list[tuple[float, int]] = []  # the longest first
        ready = now
        for view in sorted(waiting, key=self._latest):
            takes = self._prompt_token_s * view.num_uncached_tokens
            heapq.heappush(chosen, (-takes, view.sequence_id))
            ready += takes
            if ready > self._latest(view):
                longest, sequence_id = heapq.heappop(chosen)
                ready += longest
                hopeless.add(sequence_id)
        return hopeless

    def _due(self, view: SequenceView) -> float:
        """When the next token is due, or all where the time limit comes first."""
        target = self._target(view)
        return target if view.deadline is None else min(target, view.deadline)

    def _target(self, view: SequenceView) -> float:
        """When the next token is due by the tenant's targets."""
        settings = self.parameters
        first = settings.first_token_targets.get(view.tenant, settings.first_token_s)
        further = settings.token_targets.get(view.tenant, settings.token_s)
        return view.arrival + first + further * view.num_output_tokens

    def _rank(self, view: SequenceView, hopeless: bool, now: float) -> tuple[int, float, int]:
        if now - view.waiting_since > self.parameters.max_wait_s:
            return 0, view.arrival, view.sequence_id
        return 2 if hopeless else 1, self._latest(view), view.sequence_id


def _smoothed(before: float, now: float, weight: float) -> float:
    return now if before == 0.0 else before + weight * (now - before)


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
