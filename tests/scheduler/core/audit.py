"""The design's invariants, derived again from nothing but the stream of plans and results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from common.step import ExecutorInfo, Fork, NewSequence, StepPlan, StepResult
from scheduler_svc.core.adoption import Residency


@dataclass(slots=True)
class Table:
    """A block table as the plans have built it: `computed` tokens, the last of them by plan `last_step`."""

    blocks: list[int]
    computed: int
    last_step: int


@dataclass(slots=True)
class Audit:
    """Follows a session. `salts` maps sequence id -> cache salt, kept by the caller.

    `busy_until` maps block -> the last plan that may write it, or read it for a copy; `read_until` -> the last plan in
    which a sequence that has left had it in its table; `space` maps block -> the salt
    of the sequence that wrote it.
    """

    info: ExecutorInfo
    window: int
    salts: dict[int, str | None] = field(default_factory=dict)
    last_step: int | None = None
    last_result: int = 0
    in_flight: int = 0
    tables: dict[int, Table] = field(default_factory=dict)
    busy_until: dict[int, int] = field(default_factory=dict)
    read_until: dict[int, int] = field(default_factory=dict)
    space: dict[int, str | None] = field(default_factory=dict)

    def on_plan(self, plan: StepPlan) -> None:
        """Check a plan against all that came before it."""
        assert self.last_step is None or plan.step == self.last_step + 1, "a step is skipped"
        self.last_step = plan.step
        self.in_flight += 1
        assert self.in_flight <= self.window, "more plans in flight than the window"
        forked = {fork.sequence_id: self._forked(fork) for fork in plan.forks}
        replaced = [sequence_id for sequence_id in forked if sequence_id in self.tables]
        for sequence_id in (*plan.finished_ids, *plan.preempted_ids, *replaced):
            table = self.tables.pop(sequence_id)
            for block in table.blocks:
                self.read_until[block] = max(table.last_step, self.read_until.get(block, 0))
        targets = self._copies(plan)
        for known in plan.scheduled:  # before new ones, which may share what these fill in the same step
            table = self.tables[known.sequence_id]
            assert table.last_step < plan.step, "two rows for one sequence"
            self._hand_out(known.sequence_id, known.new_block_ids)
            table.blocks += known.new_block_ids
            self._advance(table, known.num_tokens, plan.step)
        for row in plan.new_sequences:
            self._enter(row, plan.step, targets)
        for fork in plan.forks:
            self._hand_out(fork.sequence_id, fork.block_ids)
        for sequence_id, table in forked.items():
            self.tables[sequence_id] = table
            self._advance(table, 1, plan.step)
        self._check_step(plan)

    def _forked(self, fork: Fork) -> Table:
        """The table that a fork begins with: its parent's, or a copy of its last block."""
        parent = self.tables[fork.parent_id]
        assert parent.last_step <= self.last_result, "a beam goes on before its result is there"
        return Table([*parent.blocks[: fork.num_kept_blocks], *fork.block_ids], parent.computed, 0)

    def resumed(self, held: Residency) -> Audit:
        """The audit of a session that goes on with what is resident: no plan is in flight, so no fence stands."""
        tables = {
            each.sequence_id: Table(list(each.block_ids), each.num_computed_tokens, held.last_step)
            for each in held.sequences
        }
        return Audit(self.info, self.window, self.salts, last_result=held.last_step, tables=tables, space=self.space)

    def on_result(self, result: StepResult) -> None:
        """The result of the oldest plan in flight is in: who drew more than one token had guesses that are right."""
        assert result.step > self.last_result
        self.last_result = result.step
        self.in_flight -= 1
        drawn = Counter(token.sequence_id for token in result.sampled)
        for sequence_id in drawn.keys() & self.tables.keys():
            self.tables[sequence_id].computed += drawn[sequence_id] - 1

    def _copies(self, plan: StepPlan) -> dict[int, str | None]:
        """Destination -> salt of what is copied there."""
        held = self.held
        for copy in plan.copies:
            assert copy.destination not in held, "a held block is copied over"
            assert self.busy_until.get(copy.destination, 0) <= self.last_result, "a fenced block is copied over"
        for copy in plan.copies:
            self.busy_until[copy.source] = plan.step
        return {copy.destination: self.space[copy.source] for copy in plan.copies}

    def _enter(self, row: NewSequence, step: int, targets: dict[int, str | None]) -> None:
        shared = row.num_computed_tokens // self.info.block_size
        for block in row.block_ids[:shared]:
            assert self.space[block] == self.salts[row.sequence_id], "a prefix is shared across salts"
        if row.num_computed_tokens % self.info.block_size:
            assert row.block_ids[shared] in targets, "a sequence continues in a block it has no copy of"
            assert targets[row.block_ids[shared]] == self.salts[row.sequence_id], "a copy across salts"
        assert row.num_computed_tokens < len(row.token_ids), "nothing is left to compute"
        self._hand_out(row.sequence_id, row.block_ids[shared:])
        self.tables[row.sequence_id] = Table(list(row.block_ids), row.num_computed_tokens, 0)
        self._advance(self.tables[row.sequence_id], row.num_tokens, step)

    def _hand_out(self, sequence_id: int, blocks: tuple[int, ...]) -> None:
        for block in blocks:
            assert not any(block in table.blocks for table in self.tables.values()), "a held block is handed out"
            assert self.busy_until.get(block, 0) <= self.last_result, "a block is reused before its fence"
            self.space[block] = self.salts[sequence_id]

    def _advance(self, table: Table, num_tokens: int, step: int) -> None:
        size = self.info.block_size
        written = table.blocks[table.computed // size :]
        table.computed += num_tokens
        table.last_step = step
        self.busy_until |= dict.fromkeys(written, step)

    def _check_step(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.info.max_step_tokens, "over the token budget"
        for draft in plan.drafts:
            table = self.tables[draft.sequence_id]
            assert table.last_step == plan.step, "a draft for who is not scheduled"
            assert table.computed + len(draft.token_ids) <= len(table.blocks) * self.info.block_size, (
                "a draft overflows"
            )
        assert len(plan.new_sequences) + len(plan.scheduled) <= self.info.max_sequences, "more rows than seats"
        for table in self.tables.values():
            assert len(table.blocks) == -(-table.computed // self.info.block_size), "waste of a block or more"
        holders = Counter(block for table in self.tables.values() for block in table.blocks)
        entering = {row.sequence_id for row in plan.new_sequences}
        for sequence_id, table in self.tables.items():
            if table.last_step == plan.step and sequence_id not in entering:
                last = table.blocks[-1]
                assert holders[last] == 1 or table.computed % self.info.block_size == 0, "a shared block is written"

    @property
    def held(self) -> set[int]:
        """Blocks in the tables of resident sequences."""
        return {block for table in self.tables.values() for block in table.blocks}

    @property
    def fenced(self) -> set[int]:
        """Blocks that a plan in flight may still write or read."""
        until = (*self.busy_until.items(), *self.read_until.items())
        return {block for block, step in until if step > self.last_result}
