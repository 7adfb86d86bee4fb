"""The old way, to be compared with: a cohort boards together, and nobody boards until all have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_svc.core.policy import Policy, SequenceView, StepView


class StaticBatch(Policy):
    """Static batching with a contiguous reservation: every seat of a cohort costs as much as its longest needs.

    The cohort is as many as arrived first and would fit, each with the longest prompt and reply of them all.
    """

    name = "static_batch"

    def __init__(self, parameters: object = None) -> None:
        super().__init__(parameters)
        self._cohort: frozenset[int] = frozenset()

    def admission_order(self, waiting: Sequence[SequenceView], step: StepView, now: float) -> list[SequenceView]:
        boarding = [view for view in waiting if view.sequence_id in self._cohort]
        if not boarding and step.num_running == 0:
            boarding = _cohort(waiting, step)
            self._cohort = frozenset(view.sequence_id for view in boarding)
        return boarding

    def export_state(self) -> Mapping[str, object]:
        return {"cohort": sorted(self._cohort)}

    def import_state(self, state: Mapping[str, object]) -> None:
        cohort = state.get("cohort")
        if isinstance(cohort, list):
            self._cohort = frozenset(cohort)


def _cohort(waiting: Sequence[SequenceView], step: StepView) -> list[SequenceView]:
    """The eldest that fit together, one at least."""
    longest, count = 0, 0
    for view in waiting[: step.num_seats]:
        longest = max(longest, -(-(view.num_prompt_tokens + view.max_output_tokens) // step.block_size))
        if count and (count + 1) * longest > step.num_blocks:
            break
        count += 1
    return list(waiting[:count])
