"""The old way to hold memory, to be compared with: each reserves the most it could need, in one piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler_svc.core.policy import Policy, Reservation, SequenceView, StepView
from scheduler_svc.policies.reserving import ReservingParameters


class Contiguous(Policy):
    """Continuous batching with a contiguous reservation: boards where prompt and longest reply fit in one piece.

    In order of arrival, in the first gap beside the reservations of all that run. The blocks themselves are handed out
    as ever: the places are only kept count of, in blocks.
    """

    name = "contiguous"
    Parameters = ReservingParameters
    parameters: ReservingParameters

    def __init__(self, parameters: ReservingParameters | None = None) -> None:
        super().__init__(parameters)
        self._places: dict[int, tuple[int, int]] = {}

    def admission_order(self, waiting: Sequence[SequenceView], step: StepView, now: float) -> list[SequenceView]:
        running = {view.sequence_id for view in step.running}
        self._places = {key: place for key, place in self._places.items() if key in running}
        seated = [view for view in step.running if view.sequence_id not in self._places]
        if not all(self._reserve(view, step) for view in seated):
            return []  # another policy has let more board than there is room for
        boarding = []
        for view in waiting[: step.num_seats]:
            if not self._reserve(view, step):
                break
            boarding.append(view)
        return boarding

    def reservation(self, running: Sequence[SequenceView]) -> Reservation:
        places = [self._places[view.sequence_id] for view in running if view.sequence_id in self._places]
        return Reservation(len(running), sum(stop - start for start, stop in places))

    def export_state(self) -> Mapping[str, object]:
        return {"places": dict(self._places)}

    def import_state(self, state: Mapping[str, object]) -> None:
        places = state.get("places")
        if isinstance(places, dict):
            self._places = dict(places)

    def _reserve(self, view: SequenceView, step: StepView) -> bool:
        """Keep the first gap that is long enough; False where there is none."""
        size, start = self.parameters.blocks(view, step), 0
        for taken_start, taken_stop in sorted(self._places.values()):
            if taken_start - start >= size:
                break
            start = taken_stop
        if start + size > step.num_blocks:
            return False
        self._places[view.sequence_id] = (start, start + size)
        return True
