"""Block tables: which blocks a sequence holds, shares, copies and gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from common.step import BlockCopy, SealedBlock
from scheduler_svc.core.beam_tables import BeamTables
from scheduler_svc.core.block_pool import BlockPool
from scheduler_svc.core.prefix_cache import CachedBlock, PartialHit, PrefixCache, block_hash, root_hash
from scheduler_svc.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What the cache has of a sequence: whole `blocks` to share, then perhaps the beginning of a block to copy."""

    blocks: tuple[int, ...] = ()
    partial: PartialHit | None = None


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Blocks by state."""

    free: int
    cached: int
    held: int


class BlockManager:
    """Hands out blocks as tokens appear, shares full ones, copies partly filled ones, and fences those given back.

    A block that a plan in flight may still write, or read for a copy, stays held until the result of that plan is in:
    `release_fenced` is told of each. `key` makes the content hashes of this pool; `beams` are the tables of searches.
    """

    def __init__(self, num_blocks: int, block_size: int, key: bytes) -> None:
        self._block_size = block_size
        self._key = key
        self._pool = BlockPool(num_blocks)
        self._cache = PrefixCache()
        self.beams = BeamTables(self._pool, block_size, self._allocate, self._release)
        self._fenced: dict[int, list[int]] = {}
        self._last_result = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out now."""
        return self._pool.num_available

    @property
    def num_fenced(self) -> int:
        """Blocks that wait for a plan in flight; most become available with its result."""
        return sum(len(blocks) for blocks in self._fenced.values())

    def counts(self) -> PoolCounts:
        """Blocks by state."""
        return PoolCounts(self._pool.num_free, self._pool.num_cached, self._pool.num_held)

    def adopt(self, sequences: Iterable[Sequence], cached: Iterable[SealedBlock]) -> list[SealedBlock]:
        """Take over a pool in use; returns the names that are news to the executor, which knows `cached`.

        `sequences` have their block tables. What a block holds that they share is read off their tokens; of a block
        that nobody holds only the name is known.
        """
        names = {seal.block_id: seal.content_hash for seal in cached}
        holders: Counter[int] = Counter()
        sealed: list[SealedBlock] = []
        for sequence in sequences:
            holders.update(sequence.block_table)
            sealed += [seal for seal in self.seal(sequence) if names.get(seal.block_id) != seal.content_hash]
        # The newest first: the end of a prefix has its name after the beginning, and is worth less.
        unheld = [block for block in reversed(names) if block not in holders]
        kept = [block for block in unheld if self._cache.insert(block, CachedBlock(b"", (), 0, names[block]))]
        self._pool.adopt(holders, kept)
        return sealed

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that many tokens take."""
        return -(-num_tokens // self._block_size)

    def room(self, sequence: Sequence) -> int:
        """Tokens the sequence can store without a new block; of a search, all its beams together."""
        if sequence.branches:
            slots = sum(map(len, sequence.branches)) * self._block_size
            return slots - len(sequence.branches) * sequence.num_branched
        return len(sequence.block_table) * self._block_size - sequence.num_scheduled

    def find(self, sequence: Sequence, step: int) -> PrefixHit:
        """The longest cached prefix for a plan number `step`, short of the last token: one is always computed."""
        usable = sequence.num_reusable
        blocks: list[int] = []
        parent = root_hash(self._key, sequence.request.cache_salt)
        for index in range(usable // self._block_size):
            name = self._name(sequence, index)
            block = self._cache.find(name)
            if block is None:
                break
            blocks.append(block)
            parent = name
        start = len(blocks) * self._block_size
        rest = sequence.tokens[start : min(start + self._block_size, usable)]
        return PrefixHit(tuple(blocks), self._cache.find_partial(parent, rest, step))

    def num_cached_tokens(self, sequence: Sequence) -> int:
        """Leading tokens the cache holds in whole blocks, short of the last token. Changes nothing a plan depends on.

        Cheap: looks only around where the last answer ended. A block reclaimed further ahead goes unnoticed for a
        while; the end of a prefix is normally reclaimed first.
        """
        usable = sequence.num_reusable
        count = min(sequence.num_cached_blocks, usable // self._block_size)
        while count > 0 and self._cache.find(self._name(sequence, count - 1)) is None:
            count -= 1
        while (count + 1) * self._block_size <= usable:
            if self._cache.find(self._name(sequence, count)) is None:
                break
            count += 1
        sequence.num_cached_blocks = count
        return count * self._block_size

    def cost(self, sequence: Sequence, hit: PrefixHit) -> int:
        """Available blocks it takes to compute all known tokens of the sequence, starting from `hit`."""
        taken_from_cache = sum(1 for block in hit.blocks if self._pool.holders(block) == 0)
        if hit.partial is not None and self._pool.holders(hit.partial.block) == 0:
            taken_from_cache += 1
        return self.blocks_for(len(sequence.tokens)) - len(hit.blocks) + taken_from_cache

    def board(self, sequence: Sequence, hit: PrefixHit, step: int) -> tuple[BlockCopy, ...]:
        """Give a sequence without blocks its prefix; returns the copy that plan number `step` has to make."""
        for block in hit.blocks:
            self._pool.hold(block)
        sequence.block_table = list(hit.blocks)
        sequence.num_sealed = len(hit.blocks)
        sequence.num_scheduled = len(hit.blocks) * self._block_size
        if hit.partial is None:
            return ()
        source = hit.partial.block
        self._pool.hold(source)
        self._fence(step, [source])
        copy = BlockCopy(source, self._allocate())
        sequence.block_table.append(copy.destination)
        sequence.num_scheduled += hit.partial.num_tokens
        return (copy,)

    def grow(self, sequence: Sequence, num_tokens: int) -> tuple[int, ...]:
        """Add blocks until the table holds `num_tokens`; returns them. Raises IndexError where all are held."""
        missing = self.blocks_for(num_tokens) - len(sequence.block_table)
        blocks = tuple(self._allocate() for _ in range(missing))
        sequence.block_table.extend(blocks)
        return blocks

    def seal(self, sequence: Sequence) -> list[SealedBlock]:
        """Offer the blocks to the cache that have become full of known tokens; returns those it took."""
        sealed: list[SealedBlock] = []
        if (sequence.num_sealed + 1) * self._block_size > len(sequence.tokens):
            return sealed  # as nearly always: this is asked once for every token
        while (sequence.num_sealed + 1) * self._block_size <= sequence.num_stored:
            index = sequence.num_sealed
            block, name = sequence.block_table[index], self._name(sequence, index)
            if self._cache.insert(block, self._content(sequence, index, name)):
                sealed.append(SealedBlock(block, name))
            sequence.num_sealed += 1
        return sealed

    def offer_rest(self, sequence: Sequence) -> None:
        """Let others copy what the sequence has stored in its partly filled block, after `seal`."""
        index = sequence.num_sealed
        if index * self._block_size < sequence.num_stored:
            self._cache.insert(sequence.block_table[index], self._content(sequence, index, None))

    def is_known(self, sealed: SealedBlock) -> bool:
        """Whether the block still holds what it was sealed with: it may have been handed out anew since."""
        return self._cache.find(sealed.content_hash) == sealed.block_id

    def give_back(self, sequence: Sequence) -> list[SealedBlock]:
        """Take all blocks from a sequence; what it has stored stays known, its partly filled block included."""
        sealed = self.seal(sequence)
        if not sequence.branches:
            self.offer_rest(sequence)
        for table in sequence.branches or [sequence.block_table]:
            table.reverse()  # the end of a prefix is worth less than its beginning: it is reused first
            if sequence.last_step > self._last_result:
                self._fence(sequence.last_step, table)
            else:
                self._release(table)
        sequence.forget_blocks()
        return sealed

    def release_fenced(self, step: int) -> None:
        """The result of plan number `step` is in."""
        self._last_result = step
        self._release(self._fenced.pop(step, []))

    def check_invariants(self, tables: list[list[int]]) -> None:
        """Raises AssertionError unless the blocks are held by `tables` and the fenced ones, and by nobody else."""
        self._pool.check_invariants()
        holders: dict[int, int] = {}
        for blocks in [*tables, *self._fenced.values()]:
            for block in blocks:
                holders[block] = holders.get(block, 0) + 1
        for block in range(self._pool.num_blocks):
            assert self._pool.holders(block) == holders.get(block, 0), f"block {block} has lost count of its holders"
        assert all(step > self._last_result for step in self._fenced), "a fence was not lifted"

    def _name(self, sequence: Sequence, index: int) -> bytes:
        """The content hash of the sequence's full block number `index`."""
        hashes = sequence.block_hashes
        while len(hashes) <= index:
            parent = hashes[-1] if hashes else root_hash(self._key, sequence.request.cache_salt)
            start = len(hashes) * self._block_size
            hashes.append(block_hash(self._key, parent, sequence.tokens[start : start + self._block_size]))
        return hashes[index]

    def _content(self, sequence: Sequence, index: int, name: bytes | None) -> CachedBlock:
        salt = sequence.request.cache_salt
        parent = self._name(sequence, index - 1) if index else root_hash(self._key, salt)
        start = index * self._block_size
        stop = min(start + self._block_size, sequence.num_stored)
        return CachedBlock(parent, tuple(sequence.tokens[start:stop]), sequence.last_step, name)

    def _allocate(self) -> int:
        block = self._pool.allocate()
        self._cache.forget(block)
        return block

    def _fence(self, step: int, blocks: list[int]) -> None:
        self._fenced.setdefault(step, []).extend(blocks)

    def _release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._pool.release(block, keep=block in self._cache)
