"""The ids of the KV blocks: who is free, who keeps a known prefix, who is held."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping


class BlockPool:
    """Counts the holders of every block and hands out the others, emptiest first.

    A block is in exactly one state: free (holds nothing), cached (nobody holds it, but its content is known and may
    be held again), or held by one or more. `allocate` takes free blocks first, then the cached block that was let go
    the longest ago.
    """

    def __init__(self, num_blocks: int) -> None:
        self._holders = [0] * num_blocks
        self._free: deque[int] = deque(range(num_blocks))
        self._cached: dict[int, None] = {}

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return len(self._holders)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks nobody holds whose content is known."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks somebody holds."""
        return len(self._holders) - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out."""
        return len(self._free) + len(self._cached)

    def holders(self, block: int) -> int:
        """How many hold `block`."""
        return self._holders[block]

    def allocate(self) -> int:
        """A block with one holder; its old content is lost. Raises IndexError where all are held."""
        block = self._free.popleft() if self._free else self._oldest_cached()
        self._holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """One holder more for a cached or held block."""
        if self._holders[block] == 0:
            del self._cached[block]
        self._holders[block] += 1

    def release(self, block: int, keep: bool) -> None:
        """One holder less. A block that nobody holds then stays cached if `keep`, else it is free."""
        self._holders[block] -= 1
        if self._holders[block] > 0:
            return
        if keep:
            self._cached[block] = None
        else:
            self._free.append(block)

    def adopt(self, holders: Mapping[int, int], cached: Iterable[int]) -> None:
        """Take over a pool in use: block -> how many hold it, and the cached ones, the first to be reused first."""
        every = range(self.num_blocks)
        self._holders = [holders.get(block, 0) for block in every]
        self._cached = dict.fromkeys(cached)
        self._free = deque(block for block in every if not self._holders[block] and block not in self._cached)

    def check_invariants(self) -> None:
        """Raises AssertionError unless every block is in exactly one state."""
        free, cached = set(self._free), set(self._cached)
        held = {block for block, holders in enumerate(self._holders) if holders > 0}
        assert len(free) == len(self._free), "a block is free twice"
        assert not (free & cached or free & held or cached & held), "a block is in two states"
        assert len(free) + len(cached) + len(held) == len(self._holders), "a block is in no state"
        assert all(holders >= 0 for holders in self._holders), "a block was released by nobody"

    def _oldest_cached(self) -> int:
        if not self._cached:
            raise IndexError("all blocks are held")
        block = next(iter(self._cached))
        del self._cached[block]
        return block
