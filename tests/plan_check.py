"""What every executor must hold against a plan before it applies any of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Self

from common.step import (
    HASH_BYTES,
    ExecutorInfo,
    Fork,
    InvalidPlan,
    NewSequence,
    Sampling,
    ScheduledSequence,
    StepPlan,
)


@dataclass(slots=True)
class Resident:
    """A sequence an executor holds."""

    tokens: list[int]
    num_prompt: int
    computed: int
    blocks: list[int]
    sampling: Sampling
    reused: int

    @classmethod
    def of(cls, new: NewSequence) -> Self:
        """A sequence that has just come."""
        computed, blocks = new.num_computed_tokens, list(new.block_ids)
        return cls(list(new.token_ids), new.num_prompt_tokens, computed, blocks, new.sampling, computed)

    def forked(self, fork: Fork) -> Resident:
        """A sequence that goes on from this one."""
        tokens = [*self.tokens[: self.computed], fork.token_id]
        return replace(self, tokens=tokens, blocks=[*self.blocks[: fork.num_kept_blocks], *fork.block_ids])


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a plan: `blocks` is the whole table, `known` the number of tokens of the sequence, `draft` not included.

    A new sequence may share a block that another row of the same plan makes full: keys and values are stored before
    they are read.
    """

    sequence_id: int
    computed: int
    num_tokens: int
    known: int
    blocks: tuple[int, ...]
    is_new: bool
    draft: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Tokens computed once the row is done."""
        return self.computed + self.num_tokens

    def written(self, block_size: int) -> tuple[int, ...]:
        """Blocks the row stores tokens in."""
        return self.blocks[self.computed // block_size : -(-self.end // block_size)]

    def full(self, block_size: int) -> tuple[int, ...]:
        """Blocks that are full once the row is done."""
        return self.blocks[: self.end // block_size]


def checked_rows(plan: StepPlan, info: ExecutorInfo, resident: Mapping[int, Resident]) -> list[Row]:
    """The rows of a plan: new sequences, scheduled ones, forks.

    Raises `InvalidPlan` where the plan contradicts what is resident.
    """
    gone = (*plan.finished_ids, *plan.preempted_ids)
    _require(len(set(gone)) == len(gone), "a sequence leaves twice")
    for sequence_id in gone:
        _require(sequence_id in resident, f"unknown sequence {sequence_id} leaves")
    staying = {key: value for key, value in resident.items() if key not in gone}
    named = [row.sequence_id for row in (*plan.new_sequences, *plan.scheduled, *plan.forks)]
    _require(len(set(named)) == len(named), "a sequence has two rows")
    rows = [_new_row(row, info, staying.keys()) for row in plan.new_sequences]
    drafts = {draft.sequence_id: draft.token_ids for draft in plan.drafts}
    rows += [_known_row(row, staying, drafts.get(row.sequence_id, ())) for row in plan.scheduled]
    rows += [_fork_row(row, info, staying, gone) for row in plan.forks]
    for fork in plan.forks:
        staying.pop(fork.sequence_id, None)
    _check_limits(rows, info)
    _check_drafts(plan, rows, info, staying)
    _check_tables(rows, info, staying)
    _check_copies(plan, info, {block for value in staying.values() for block in value.blocks})
    _check_seals(plan, info)
    return rows


def _new_row(row: NewSequence, info: ExecutorInfo, present: Set[int]) -> Row:
    _require(row.sequence_id not in present, f"sequence {row.sequence_id} is resident already")
    _require(0 < row.num_prompt_tokens <= len(row.token_ids), "num_prompt_tokens out of range")
    _require(all(0 <= token < info.vocab_size for token in row.token_ids), "token outside the vocabulary")
    return Row(row.sequence_id, row.num_computed_tokens, row.num_tokens, len(row.token_ids), row.block_ids, True)


def _known_row(row: ScheduledSequence, staying: Mapping[int, Resident], draft: tuple[int, ...]) -> Row:
    _require(row.sequence_id in staying, f"unknown sequence {row.sequence_id}")
    held = staying[row.sequence_id]
    table = (*held.blocks, *row.new_block_ids)
    return Row(row.sequence_id, held.computed, row.num_tokens, len(held.tokens), table, False, draft)


def _fork_row(fork: Fork, info: ExecutorInfo, staying: Mapping[int, Resident], gone: tuple[int, ...]) -> Row:
    _require(fork.parent_id in staying, f"sequence {fork.sequence_id} forks an unknown one")
    _require(fork.sequence_id not in gone, f"sequence {fork.sequence_id} leaves and is forked")
    _require(0 <= fork.token_id < info.vocab_size, "token outside the vocabulary")
    parent = staying[fork.parent_id]
    _require(0 <= fork.num_kept_blocks <= len(parent.blocks), "more blocks kept than there are")
    table = (*parent.blocks[: fork.num_kept_blocks], *fork.block_ids)
    return Row(fork.sequence_id, parent.computed, 1, parent.computed + 1, table, False)


def _check_limits(rows: list[Row], info: ExecutorInfo) -> None:
    _require(len(rows) <= info.max_sequences, "more rows than seats")
    num_tokens = sum(row.num_tokens + len(row.draft) for row in rows)
    _require(num_tokens <= info.max_step_tokens, "more tokens than a step may compute")
    for row in rows:
        _require(row.num_tokens > 0 and row.computed >= 0, f"sequence {row.sequence_id} computes nothing")
        _require(row.end <= row.known, f"sequence {row.sequence_id} computes tokens that are not known")
        _require(row.known <= info.max_model_len, f"sequence {row.sequence_id} is longer than the context")


def _check_drafts(plan: StepPlan, rows: list[Row], info: ExecutorInfo, staying: Mapping[int, Resident]) -> None:
    drafted = [draft.sequence_id for draft in plan.drafts]
    _require(len(set(drafted)) == len(drafted), "two drafts for one sequence")
    _require({row.sequence_id for row in plan.scheduled}.issuperset(drafted), "a draft for who is not scheduled")
    for row in (row for row in rows if row.sequence_id in drafted):
        end = row.end + len(row.draft)
        _require(bool(row.draft), "an empty draft")
        _require(row.end == row.known, "a draft for who does not draw")
        _require(staying[row.sequence_id].sampling.is_plain, "a draft for who is not plain")
        _require(all(0 <= token < info.vocab_size for token in row.draft), "token outside the vocabulary")
        _require(end <= min(len(row.blocks) * info.block_size, info.max_model_len), "a draft has no room")


def _check_tables(rows: list[Row], info: ExecutorInfo, staying: Mapping[int, Resident]) -> None:
    tables = {key: tuple(held.blocks) for key, held in staying.items()}
    tables |= {row.sequence_id: row.blocks for row in rows}
    holders: Counter[int] = Counter()
    for table in tables.values():
        _require(len(set(table)) == len(table), "a table names a block twice")
        holders.update(table)
    _require(all(0 <= block < info.num_blocks for block in holders), "block outside the pool")
    sharing: Counter[int] = Counter()
    for row in rows:
        _require(len(row.blocks) == -(-row.end // info.block_size), "a table is not as long as its tokens need")
        if row.is_new:
            sharing.update(row.blocks[: row.computed // info.block_size])
    for row in rows:
        full = row.full(info.block_size)
        for block in row.written(info.block_size):
            readers = sharing[block] if block in full else 0
            _require(holders[block] == 1 + readers, "a shared block is written")


def _check_copies(plan: StepPlan, info: ExecutorInfo, held: Set[int]) -> None:
    sources = {copy.source for copy in plan.copies}
    targets = {copy.destination for copy in plan.copies}
    _require(all(0 <= block < info.num_blocks for block in sources | targets), "block outside the pool")
    _require(len(targets) == len(plan.copies), "two copies to one block")
    _require(not targets & sources, "a copy of a copy")
    _require(not targets & held, "a copy over a block that is held")


def _check_seals(plan: StepPlan, info: ExecutorInfo) -> None:
    for seal in plan.sealed:
        _require(0 <= seal.block_id < info.num_blocks, "block outside the pool")
        _require(len(seal.content_hash) == HASH_BYTES, f"a hash is not {HASH_BYTES} bytes wide")


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise InvalidPlan(problem)
