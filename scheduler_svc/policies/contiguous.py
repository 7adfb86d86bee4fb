"""The old way to hold memory, to be compared with: each reserves the most it could need, in one piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_svc.core.policy import Policy, Reservation, SequenceView, StepView


@dataclass(frozen=True, slots=True)
class ContiguousParameters:
    """What is reserved.

    Attributes:
        longest_reply: tokens reserved for every reply; who asked for more gets more, and 0 is what each asked for.
    """

    longest_reply: int = 0

    def __post_init__(self) -> None:
        if self.longest_reply < 0:
            raise ValueError("longest_reply must not be less than 0")


class Contiguous(Policy):
    """Continuous batching with a contiguous reservation: boards where prompt and longest reply fit in one piece.

    In order of arrival, in the first gap beside the reservations of all that run. The blocks themselves are handed out
    as ever: the places are only kept count of, in blocks.
    """

    name = "contiguous"
    Parameters = ContiguousParameters
    parameters: ContiguousParameters

    def __init__(self, parameters: ContiguousParameters | None = None) -> None:
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
        reply = max(self.parameters.longest_reply, view.max_output_tokens)
        size = min(-(-(view.num_prompt_tokens + reply) // step.block_size), step.num_blocks)
        start = 0
        for taken_start, taken_stop in sorted(self._places.values()):
            if taken_start - start >= size:
                break
            start = taken_stop
        if start + size > step.num_blocks:
            return False
        self._places[view.sequence_id] = (start, start + size)
        return True
