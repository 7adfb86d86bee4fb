"""Earliest deadline first, and no work on what cannot be in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_svc.core.policy import Charge, Policy, SequenceView, StepView

_SMOOTHING = 0.1
"""Weight of the newest step in the measured speeds."""

_PAUSE_S = 1.0
"""Between two steps that are further apart nothing was computed, in seconds."""


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
    """

    first_token_s: float = 10.0
    first_token_targets: Mapping[str, float] = field(default_factory=dict)
    token_s: float = 0.2
    token_targets: Mapping[str, float] = field(default_factory=dict)
    output_share: float = 0.0
    shed: bool = True
    max_wait_s: float = 60.0

    def __post_init__(self) -> None:
        times = (self.first_token_s, *self.first_token_targets.values(), self.token_s, *self.token_targets.values())
        if min(times) <= 0 or self.max_wait_s < 0:
            raise ValueError("targets must be more than 0, and max_wait_s not less than 0")
        if not 0 <= self.output_share <= 1:
            raise ValueError("output_share must be 0 to 1")


class Deadline(Policy):
    """Boards who is due first, behind them who is late; who is due last gives up its blocks first.

    How long something takes is judged by the steps so far: prompt tokens a second, and seconds a token.
    """

    name = "deadline"
    Parameters = DeadlineParameters
    parameters: DeadlineParameters

    def __init__(self, parameters: DeadlineParameters | None = None) -> None:
        super().__init__(parameters)
        self._prompt_token_s = 0.0
        self._step_s = 0.0
        self._last: tuple[float, int] | None = None  # when the step before was made, and its prompt tokens

    def admission_order(self, waiting: Sequence[SequenceView], step: StepView, now: float) -> list[SequenceView]:
        return sorted(waiting, key=lambda view: self._rank(view, now))

    def prefill_order(self, prefills: Sequence[SequenceView], now: float) -> list[SequenceView]:
        return sorted(prefills, key=self._due)

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
        if self._last is not None and 0 < now - self._last[0] < _PAUSE_S:
            self._learn(now - self._last[0], self._last[1])
        self._last = (now, prompt_tokens)

    def export_state(self) -> Mapping[str, object]:
        return {"prompt_token_s": self._prompt_token_s, "step_s": self._step_s}

    def import_state(self, state: Mapping[str, object]) -> None:
        self._prompt_token_s = _number(state.get("prompt_token_s"))
        self._step_s = _number(state.get("step_s"))

    def _learn(self, step_s: float, prompt_tokens: int) -> None:
        """A step that computed `prompt_tokens`, decodes aside, took `step_s` seconds."""
        self._step_s = _smoothed(self._step_s, step_s)
        if prompt_tokens > 1:
            self._prompt_token_s = _smoothed(self._prompt_token_s, step_s / prompt_tokens)

    def _takes(self, view: SequenceView) -> float:
        """Seconds until it has what its time limit asks for, were it to board now."""
        output = self.parameters.output_share * (view.max_output_tokens - view.num_output_tokens)
        return self._prompt_token_s * view.num_uncached_tokens + self._step_s * output

    def _due(self, view: SequenceView) -> float:
        """When the next token is due, or all where the time limit comes first."""
        settings = self.parameters
        first = settings.first_token_targets.get(view.tenant, settings.first_token_s)
        further = settings.token_targets.get(view.tenant, settings.token_s)
        target = view.arrival + first + further * view.num_output_tokens
        return target if view.deadline is None else min(target, view.deadline)

    def _rank(self, view: SequenceView, now: float) -> tuple[int, float, int]:
        due = self._due(view)
        if now - view.waiting_since > self.parameters.max_wait_s:
            return 0, view.arrival, view.sequence_id
        late = now + self._prompt_token_s * view.num_uncached_tokens > due
        return 2 if late else 1, due, view.sequence_id


def _smoothed(before: float, now: float) -> float:
    return now if before == 0.0 else before + _SMOOTHING * (now - before)


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
