"""The block tables of a beam search: whole blocks are shared, the partly filled one is copied where beams part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from common.step import BlockCopy, Fork
from scheduler_svc.core.beams import BeamSearch
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.sequence import Sequence


class BeamTables:
    """Gives the beams of searches their tables, out of `pool`, with the block manager's own `allocate` and `release`.

    To be asked for a search that knows how it goes on (`Sequence.can_fork`): no plan in flight computes for it.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        allocate: Callable[[], int],
        release: Callable[[Iterable[int]], None],
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._allocate = allocate
        self._release = release

    def cost(self, sequence: Sequence) -> int:
        """Available blocks that `fork` takes, less those that it gives back; under 0 where these are more."""
        search, old = _search_of(sequence), _tables_of(sequence)
        children = Counter(search.parents)
        dropped = Counter(block for index, table in enumerate(old) if not children[index] for block in table)
        freed = sum(self._pool.holders(block) == count for block, count in dropped.items())
        shared = len(children) if self._parts_inside_a_block(sequence) else 0
        return len(search.parents) - shared - freed

    def fork(self, sequence: Sequence) -> tuple[list[Fork], list[BlockCopy]]:
        """Give each beam its table, with room for one token; what no beam goes on from is given back.

        Raises IndexError where all blocks are held.
        """
        search, old = _search_of(sequence), _tables_of(sequence)
        children = Counter(search.parents)
        for index, table in enumerate(old):
            for block in table * (children[index] - 1):
                self._pool.hold(block)
            if not children[index]:
                self._release(reversed(table))
        forks, copies, tables = [], [], []
        for index, (parent, beam) in enumerate(zip(search.parents, search.beams, strict=True)):
            kept, added = list(old[parent]), []
            if not self._parts_inside_a_block(sequence):
                added = [self._allocate()]
            elif children[parent] > 1:  # the last one goes on in the block itself
                children[parent] -= 1
                source = kept.pop()
                added = [self._allocate()]
                copies.append(BlockCopy(source, added[0]))
                self._release([source])
            first = sequence.sequence_id
            forks.append(Fork(first + index, first + parent, beam.tokens[-1], len(kept), tuple(added)))
            tables.append(kept + added)
        sequence.block_table, sequence.branches = [], tables
        sequence.num_branched = sequence.num_prompt_tokens + search.length
        return forks, copies

    def _parts_inside_a_block(self, sequence: Sequence) -> bool:
        """Whether the next token of the beams goes into a block that has some already."""
        return (sequence.num_prompt_tokens + _search_of(sequence).length - 1) % self._block_size > 0


def _search_of(sequence: Sequence) -> BeamSearch:
    assert sequence.search is not None, "only a search has beams"
    return sequence.search


def _tables_of(sequence: Sequence) -> list[list[int]]:
    """Of the beams; at first, of the prompt."""
    return sequence.branches or [sequence.block_table]
