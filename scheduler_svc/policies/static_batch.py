"""The old way, to be compared with: a cohort boards together, and nobody boards until all have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_svc.core.policy import Policy, Reservation, SequenceView, StepView
from scheduler_svc.policies.reserving import ReservingParameters


class StaticBatch(Policy):
    """Static batching with a contiguous reservation: every seat of a cohort costs as much as its longest needs.

    The cohort is as many as arrived first and would fit, each with the longest prompt and reply of them all.
    """

    name = "static_batch"
    Parameters = ReservingParameters
    parameters: ReservingParameters

    def __init__(self, parameters: ReservingParameters | None = None) -> None:
        super().__init__(parameters)
        self._cohort: frozenset[int] = frozenset()
        self._blocks_each = 0

    def admission_order(self, waiting: Sequence[SequenceView], step: StepView, now: float) -> list[SequenceView]:
        boarding = [view for view in waiting if view.sequence_id in self._cohort]
        if not boarding and step.num_running == 0:
            boarding, self._blocks_each = self._next_cohort(waiting, step)
            self._cohort = frozenset(view.sequence_id for view in boarding)
        return boarding

    def reservation(self, running: Sequence[SequenceView]) -> Reservation | None:
        if not any(view.sequence_id in self._cohort for view in running):
            return None
        return Reservation(len(self._cohort), len(self._cohort) * self._blocks_each)

    def export_state(self) -> Mapping[str, object]:
        return {"cohort": sorted(self._cohort), "blocks_each": self._blocks_each}

    def import_state(self, state: Mapping[str, object]) -> None:
        cohort, blocks_each = state.get("cohort"), state.get("blocks_each")
        if isinstance(cohort, list) and isinstance(blocks_each, int):
            self._cohort, self._blocks_each = frozenset(cohort), blocks_each

    def _next_cohort(self, waiting: Sequence[SequenceView], step: StepView) -> tuple[list[SequenceView], int]:
        """The eldest that fit together, one at least, and the blocks that the longest of them needs."""
        longest, count = 0, 0
        for view in waiting[: step.num_seats]:
            needed = self.parameters.blocks(view, step)
            if count and (count + 1) * max(longest, needed) > step.num_blocks:
                break
            longest = max(longest, needed)
            count += 1
        return list(waiting[:count]), longest
