"""What must hold of the sequences and their blocks at any moment."""

from __future__ import annotations

from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.roster import Roster


def check_roster(roster: Roster, blocks: BlockManager) -> None:
    """Raises AssertionError where the sequences contradict their blocks (the design's invariants 1 to 4)."""
    roster.check_invariants()
    blocks.check_invariants([table for one in roster.running for table in (one.branches or [one.block_table])])
    for sequence in roster.running:
        if sequence.branches:
            needed = blocks.blocks_for(sequence.num_branched)
            assert all(len(table) == needed for table in sequence.branches), "a beam has a block too many"
            assert not sequence.block_table, "a search holds blocks that no beam has"
            continue
        assert len(sequence.block_table) == blocks.blocks_for(sequence.num_scheduled), "a block too many"
        assert sequence.num_scheduled <= sequence.num_planned, "more is computed than there is"
    assert not any(sequence.block_table for sequence in roster.waiting), "a waiting sequence holds blocks"
