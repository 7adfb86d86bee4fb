"""The resident table: names of blocks, plans refused whole, what is forgotten. (The contract suite has the rest.)"""

from __future__ import annotations

from typing import Any

import pytest

from common.step import (
    BlockCopy,
    ExecutorInfo,
    InvalidPlan,
    NewSequence,
    Sampling,
    ScheduledSequence,
    SealedBlock,
    StepPlan,
)
from executor_svc.resident import ResidentTable

INFO = ExecutorInfo(
    epoch=b"e" * 16,
    model="none",
    vocab_size=100,
    max_model_len=80,
    block_size=16,
    num_blocks=12,
    max_sequences=4,
    max_step_tokens=64,
)
GREEDY = Sampling(temperature=0)


def name(number: int) -> bytes:
    return bytes([number]) * 16


def new(sequence_id: int, length: int, *blocks: int, computed: int = 0, count: int | None = None) -> NewSequence:
    num_tokens = length - computed if count is None else count
    return NewSequence(sequence_id, tuple(range(length)), length, computed, num_tokens, blocks, GREEDY)


def seals(*blocks: int) -> tuple[SealedBlock, ...]:
    return tuple(SealedBlock(block, name(block)) for block in blocks)


class Table:
    """A table to which plans are applied and committed, every drawn token being 7."""

    def __init__(self) -> None:
        self.table = ResidentTable(INFO)

    def step(self, **parts: Any) -> None:
        plan = StepPlan(1, 1, **parts)
        rows = self.table.apply(plan)
        self.table.commit(rows, [[7] for row in rows if row.draws], plan.sealed)

    @property
    def named(self) -> dict[int, bytes]:
        return {seal.block_id: seal.content_hash for page in self.table.pages(0, 100) for seal in page.cached}

    @property
    def state(self) -> list[Any]:
        return list(self.table.pages(0, 100))


@pytest.fixture
def table() -> Table:
    """1: 33 tokens in blocks 0, 1 and 2, and one drawn. 2: 16 of 40 tokens computed in block 3. 0, 1, 3 are named."""
    table = Table()
    table.step(new_sequences=(new(1, 33, 0, 1, 2), new(2, 40, 3, count=16)), sealed=seals(0, 1, 3))
    return table


def test_rows_come_with_their_bounds_new_ones_first(table: Table) -> None:
    plan = StepPlan(
        1, 2, new_sequences=(new(3, 5, 4),), scheduled=(ScheduledSequence(2, 23, (5, 6)), ScheduledSequence(1, 1))
    )
    rows = table.table.apply(plan)
    assert [(row.sequence.sequence_id, row.start, row.end, row.draws) for row in rows] == [
        (3, 0, 5, True),
        (2, 16, 39, False),
        (1, 33, 34, True),
    ]
    assert rows[1].slots(16) == [5 * 16 + offset for offset in range(16)] + [6 * 16 + offset for offset in range(7)]


def test_a_name_stays_after_its_sequence_has_left(table: Table) -> None:
    table.step(finished_ids=(1,), preempted_ids=(2,))
    assert table.named == {0: name(0), 1: name(1), 3: name(3)}


def test_a_name_stays_while_new_sequences_read_the_block(table: Table) -> None:
    table.step(finished_ids=(1,), new_sequences=(new(3, 33, 0, 1, 4, computed=32),))
    assert table.named == {0: name(0), 1: name(1), 3: name(3)}


def test_a_copy_forgets_the_name_of_its_destination(table: Table) -> None:
    table.step(finished_ids=(1,), copies=(BlockCopy(3, 1),))
    assert table.named == {0: name(0), 3: name(3)}


def test_growing_into_a_block_forgets_its_name(table: Table) -> None:
    table.step(finished_ids=(1,), scheduled=(ScheduledSequence(2, 10, (0,)),))
    assert table.named == {1: name(1), 3: name(3)}


def test_a_new_sequence_forgets_the_names_beyond_its_computed_prefix(table: Table) -> None:
    table.step(finished_ids=(1,), new_sequences=(new(3, 33, 0, 1, 4, computed=16),))
    assert table.named == {0: name(0), 3: name(3)}


def test_a_block_may_be_named_in_the_step_that_fills_it_anew(table: Table) -> None:
    table.step(finished_ids=(1,), new_sequences=(new(3, 16, 0),), sealed=(SealedBlock(0, name(9)),))
    assert table.named[0] == name(9)


def test_dropped_rows_are_forgotten_and_their_blocks_free(table: Table) -> None:
    rows = table.table.apply(StepPlan(1, 2, scheduled=(ScheduledSequence(1, 1),), sealed=seals(2)))
    table.table.drop(rows)
    assert [sequence.sequence_id for page in table.state for sequence in page.sequences] == [2]
    assert 2 not in table.named
    table.step(new_sequences=(new(1, 33, 0, 1, 2),))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"scheduled": (ScheduledSequence(9, 1),)}, "sequence 9 is not resident"),
    ({"finished_ids": (9,)}, "sequence 9 leaves and is not resident"),
    ({"finished_ids": (1,), "preempted_ids": (1,)}, "sequence 1 leaves twice"),
    ({"finished_ids": (1,), "scheduled": (ScheduledSequence(1, 1),)}, "sequence 1 is not resident"),
    ({"new_sequences": (new(1, 5, 4),)}, "sequence 1 is resident already"),
    ({"new_sequences": (new(3, 5, 4), new(3, 5, 5))}, "sequence 3 has two rows"),
    ({"new_sequences": (new(3, 5, 12),)}, r"sequence 3 has block \[12\], which is outside the pool"),
    ({"new_sequences": (new(3, 5, -1),)}, r"sequence 3 has block \[-1\], which is outside the pool"),
    ({"new_sequences": (new(3, 17, 4),)}, "sequence 3 has 1 blocks and needs 2"),
    ({"scheduled": (ScheduledSequence(1, 1, (4,)),)}, "sequence 1 has 4 blocks and needs 3"),
    ({"scheduled": (ScheduledSequence(1, 2),)}, "sequence 1 computes 35 tokens and 34 are known"),
    ({"scheduled": (ScheduledSequence(1, 0),)}, "sequence 1 computes nothing"),
    ({"new_sequences": (new(3, 81, 4, count=16),)}, "sequence 3 is longer than 80 tokens"),
    ({"new_sequences": (new(3, 65, 4, 5, 6, 7, 8),)}, "65 tokens are more than 64"),
    ({"new_sequences": tuple(new(key, 1, key + 4) for key in range(3, 8))}, "5 rows are more than 4"),
    ({"new_sequences": (new(3, 32, 4, 4),)}, "sequence 3 names block 4 twice"),
    ({"scheduled": (ScheduledSequence(2, 10, (3,)),)}, "sequence 2 names block 3 twice"),
    ({"new_sequences": (new(3, 33, 0, 1, 2, computed=32),)}, "sequence 3 writes block 2, which is shared"),
    ({"scheduled": (ScheduledSequence(2, 10, (1,)),)}, "sequence 2 writes block 1, which is shared"),
    ({"copies": (BlockCopy(0, 12),)}, "block 12 is copied and outside the pool"),
    ({"copies": (BlockCopy(0, 4), BlockCopy(1, 4))}, "block 4 is copied to twice"),
    ({"copies": (BlockCopy(0, 4), BlockCopy(4, 5))}, "block 4 is copied from and to"),
    ({"copies": (BlockCopy(0, 2),)}, "block 2 is copied over and held"),
    ({"sealed": (SealedBlock(12, name(1)),)}, "block 12 is sealed and outside the pool"),
    ({"sealed": (SealedBlock(1, b"short"),)}, "the hash of block 1 is not 16 bytes"),
    ({"new_sequences": (NewSequence(3, (1, 100), 2, 0, 2, (4,), GREEDY),)}, "outside the model's vocabulary"),
    ({"new_sequences": (NewSequence(3, (1, -1), 2, 0, 2, (4,), GREEDY),)}, "sequence 3 has a negative token id"),
    ({"new_sequences": (NewSequence(3, (1, 2), 3, 0, 2, (4,), GREEDY),)}, "num_prompt_tokens is out of range"),
    ({"new_sequences": (NewSequence(3, (), 0, 0, 0, (), GREEDY),)}, "num_prompt_tokens is out of range"),
    ({"new_sequences": (NewSequence(3, (1, 2), 2, -1, 2, (4,), GREEDY),)}, "num_computed_tokens is negative"),
]


@pytest.mark.parametrize(("parts", "problem"), REFUSED)
def test_a_plan_that_contradicts_is_refused_whole(table: Table, parts: dict[str, Any], problem: str) -> None:
    before = table.state
    with pytest.raises(InvalidPlan, match=problem):
        table.table.apply(StepPlan(1, 2, **parts))
    assert table.state == before
    table.step(finished_ids=(1, 2), new_sequences=(new(3, 64, 0, 1, 2, 3),))


def test_blocks_given_back_may_be_given_out_in_the_same_plan(table: Table) -> None:
    table.step(finished_ids=(1,), copies=(BlockCopy(3, 2),), scheduled=(ScheduledSequence(2, 24, (0, 1)),))
    table.step(preempted_ids=(2,), new_sequences=(new(2, 40, 1, 2, 3),))


def test_holders_do_not_pile_up(table: Table) -> None:
    table.step(finished_ids=(1, 2))
    assert not table.table._holders
