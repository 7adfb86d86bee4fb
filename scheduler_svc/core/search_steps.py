"""What a step does with beam searches."""

from __future__ import annotations

from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.plan_draft import PlanDraft
from scheduler_svc.core.sequence import Sequence


def can_fork(sequence: Sequence) -> bool:
    """Whether it is a search that knows how its beams go on, and has not told the executor yet."""
    return sequence.search is not None and sequence.search.length > 0 and sequence.num_pending == 0


def resident_ids(sequence: Sequence) -> range:
    """Ids under which the executor knows a sequence, where it does: one, or one for each beam."""
    return range(sequence.sequence_id, sequence.sequence_id + max(1, len(sequence.branches)))


def blocks_wanted(sequence: Sequence, blocks: BlockManager) -> int:
    """Blocks that a sequence, a search or not, needs to compute its next token."""
    return max(0, blocks.beams.cost(sequence)) if can_fork(sequence) else int(blocks.room(sequence) == 0)


def fork(sequence: Sequence, blocks: BlockManager, draft: PlanDraft) -> None:
    """A search goes on by a token, all its beams at once; or none, where tokens or blocks do not suffice."""
    if sequence.num_seats > draft.tokens or blocks.beams.cost(sequence) > blocks.num_available:
        return
    forks, copies = blocks.beams.fork(sequence)
    draft.forks.extend(forks)
    draft.copies.extend(copies)
    draft.forked.append(sequence)
    draft.take(sequence, len(forks), len(forks))
    sequence.last_step = draft.step
    sequence.num_pending = len(forks)
