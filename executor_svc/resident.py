"""What is resident: sequences, and the names of blocks with known content. A cache of the plan stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from common.resident import ResidentPage
from common.step import ExecutorInfo, Fork, SealedBlock, StepPlan
from executor_svc import plan_rules
from executor_svc.sequence import HeldSequence, Row, block_table


class ResidentTable:
    """Follows the scheduler's plans: `apply` one, compute its rows, then `commit` or `drop` them.

    A block's hash is forgotten as soon as the block is given out anew: copied to, grown into, or written.
    """

    def __init__(self, info: ExecutorInfo) -> None:
        self._info = info
        self._sequences: dict[int, HeldSequence] = {}
        self._holders: Counter[int] = Counter()
        self._hashes: dict[int, bytes] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of any block."""
        return not self._sequences and not self._hashes

    def is_plain(self, plan: StepPlan) -> bool:
        """Whether each row of the plan draws what its logits, its seed and its index say, and nothing is guessed."""
        ids = chain((row.sequence_id for row in plan.scheduled), (fork.parent_id for fork in plan.forks))
        known = map(self._sequences.get, ids)
        new = (row.sampling.is_plain for row in plan.new_sequences)
        return not plan.drafts and all(held is not None and held.is_plain for held in known) and all(new)

    def apply(self, plan: StepPlan) -> list[Row]:
        """Take a plan in; returns what it computes: new sequences, known ones, forks.

        Raises `InvalidPlan`, with nothing changed, where the plan contradicts what is resident.
        """
        plan_rules.check_plan(plan, self._info, plan_rules.Resident(self._sequences, self._holders))
        forked = [self._fork(fork) for fork in plan.forks]
        replaced = [fork.sequence_id for fork in plan.forks if fork.sequence_id in self._sequences]
        for sequence_id in chain(plan.finished_ids, plan.preempted_ids, replaced):
            self._remove(sequence_id)
        for copy in plan.copies:
            self._hashes.pop(copy.destination, None)
        rows = []
        drafts = {draft.sequence_id: draft.token_ids for draft in plan.drafts}
        for new in plan.new_sequences:
            self._sequences[new.sequence_id] = held = HeldSequence(
                new.sequence_id,
                list(new.token_ids),
                new.num_prompt_tokens,
                new.num_computed_tokens,
                block_table(),
                new.sampling,
                new.num_computed_tokens,
            )
            rows.append(self._row(held, new.num_tokens, new.block_ids))
        for known in plan.scheduled:
            held, draft = self._sequences[known.sequence_id], drafts.get(known.sequence_id, ())
            rows.append(self._row(held, known.num_tokens, known.new_block_ids, draft))
        for held, blocks in forked:
            self._sequences[held.sequence_id] = held
            rows.append(self._row(held, 1, blocks))
        return rows

    def commit(self, rows: Iterable[Row], drawn: Iterable[Sequence[int]], sealed: Iterable[SealedBlock]) -> None:
        """The rows are computed, and those that draw drew `drawn`, in order: guesses that are right, and one more."""
        news = iter(drawn)
        for row in rows:
            held = row.sequence
            if row.draws:
                held.tokens += next(news)
            held.num_computed_tokens = len(held.tokens) - 1 if row.draws else row.end
        self._hashes.update((seal.block_id, seal.content_hash) for seal in sealed)

    def drop(self, rows: Iterable[Row]) -> None:
        """The computation of the rows failed: their sequences are forgotten."""
        for row in rows:
            self._remove(row.sequence.sequence_id)

    def clear(self) -> None:
        """Forget everything."""
        self._sequences.clear()
        self._holders.clear()
        self._hashes.clear()

    def pages(self, last_step: int, page_size: int) -> Iterator[ResidentPage]:
        """What is resident, at least one page, each with at most `page_size` sequences and cached blocks."""
        sequences = list(self._sequences.values())
        cached = [SealedBlock(block, content_hash) for block, content_hash in self._hashes.items()]
        for start in range(0, max(len(sequences), len(cached), 1), page_size):
            part = slice(start, start + page_size)
            reports = tuple(held.report() for held in sequences[part])
            yield ResidentPage(self._info.epoch, last_step, reports, tuple(cached[part]))

    def _fork(self, fork: Fork) -> tuple[HeldSequence, list[int]]:
        """The sequence that a fork begins, and its block table."""
        parent = self._sequences[fork.parent_id]
        table = [*parent.block_ids[: fork.num_kept_blocks], *fork.block_ids]
        return parent.fork(fork.sequence_id, fork.token_id), table

    def _row(self, held: HeldSequence, num_tokens: int, blocks: Sequence[int], draft: tuple[int, ...] = ()) -> Row:
        if blocks:
            held.block_ids.extend(blocks)
            self._holders.update(blocks)
        start = held.num_computed_tokens
        end = start + num_tokens
        for block in held.block_ids[start // self._info.block_size :]:
            self._hashes.pop(block, None)
        return Row(held, start, end + len(draft), draws=end == len(held.tokens), draft=draft)

    def _remove(self, sequence_id: int) -> None:
        blocks = self._sequences.pop(sequence_id).block_ids
        self._holders.subtract(blocks)
        for block in blocks:
            if not self._holders[block]:
                del self._holders[block]
