"""What a policy is shown of a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.sequence import Sequence, Status


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """`scheduler_svc.core.policy.SequenceView` of one sequence, for as long as its executor holds its blocks.

    The core never reads a view back: a policy that tampers with one misleads nobody but itself.
    """

    sequence_id: int
    arrival: float
    priority: int
    tenant: str
    deadline: float | None
    num_prompt_tokens: int
    max_output_tokens: int
    _sequence: Sequence = field(repr=False)
    _blocks: BlockManager = field(repr=False)

    @property
    def num_output_tokens(self) -> int:
        return self._sequence.num_output_tokens

    @property
    def num_remaining(self) -> int:
        return self._sequence.num_remaining

    @property
    def num_uncached_tokens(self) -> int:
        sequence = self._sequence
        if sequence.status is not Status.WAITING:
            return sequence.num_remaining
        return len(sequence.tokens) - self._blocks.num_cached_tokens(sequence)

    @property
    def waiting_since(self) -> float:
        return self._sequence.waiting_since

    @property
    def is_waiting(self) -> bool:
        """Whether the sequence waits for a seat."""
        return self._sequence.status is Status.WAITING


def view_of(sequence: Sequence, blocks: BlockManager) -> View:
    """A view of `sequence`, whose blocks are those of `blocks`."""
    request = sequence.request
    return View(
        sequence_id=request.sequence_id,
        arrival=request.arrival,
        priority=request.priority,
        tenant=request.tenant,
        deadline=request.deadline,
        num_prompt_tokens=len(request.prompt),
        max_output_tokens=sequence.max_output,
        _sequence=sequence,
        _blocks=blocks,
    )
