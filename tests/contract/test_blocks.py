"""Sharing, copying and reuse of blocks by every step executor."""

from __future__ import annotations

import pytest

from common.step import (
    BlockCopy,
    InvalidPlan,
    Sampling,
)
from common.step_executor import StepExecutor
from tests.contract.session import (
    GREEDY,
    OTHER,
    PROMPT,
    SAMPLED,
    Session,
    grow,
    new,
    reference,
    residents,
)


def test_a_shared_prefix_is_read_and_never_computed_again(executor: StepExecutor) -> None:
    left, right = [*PROMPT[:32], 3, 4], [*PROMPT[:32], 9]
    expected = reference(executor, left, 4), reference(executor, right, 4)
    session = Session(executor)
    first = [session.tokens(new_sequences=(new(1, left, [7, 5, 6]),))[1]]
    second = [session.tokens(new_sequences=(new(2, right, [7, 5, 8], computed=32),))[2]]
    for _ in range(3):
        drawn = session.tokens(scheduled=(grow(1), grow(2)))
        first.append(drawn[1])
        second.append(drawn[2])
    assert (first, second) == expected


def test_a_prefix_can_be_shared_in_the_step_that_computes_it(executor: StepExecutor) -> None:
    """By rows before and after it in the plan: keys and values of a layer are stored before any are read."""
    left, right = [*PROMPT[:32], 3, 4], [*PROMPT[:32], 9]
    expected = reference(executor, left, 1) + reference(executor, right, 1) + reference(executor, right[:17], 1)
    session = Session(executor)
    session.step(new_sequences=(new(1, left, [7], count=16),))
    rows = (new(2, right, [7, 5, 8], computed=32), new(3, right[:17], [7, 9], computed=16))
    drawn = session.tokens(new_sequences=rows, scheduled=(grow(1, 5, 6, count=18),))
    assert [drawn[1], drawn[2], drawn[3]] == expected


@pytest.mark.parametrize("shared", [1, 8, 15])
def test_a_partly_filled_block_is_continued_in_a_copy(executor: StepExecutor, shared: int) -> None:
    left, right = PROMPT[:32], [*PROMPT[: 16 + shared], *OTHER[:6]]
    expected = reference(executor, left, 4), reference(executor, right, 4)
    session = Session(executor)
    first = [session.tokens(new_sequences=(new(1, left, [7, 5]),))[1]]
    copied = new(2, right, [7, 6, 9][: -(-len(right) // 16)], computed=16 + shared)
    drawn = session.tokens(copies=(BlockCopy(5, 6),), new_sequences=(copied,), scheduled=(grow(1, 8),))
    first.append(drawn[1])
    second = [drawn[2], *session.decode(2, len(right) + 1, 3, [12, 13])]
    first += session.decode(1, 34, 2, [])
    assert (first, second) == expected


def test_the_parts_of_a_plan_are_applied_in_order(executor: StepExecutor) -> None:
    """Sequence 1 leaves; its last block is copied; only then 3 writes over it, and 2 goes on in the copy."""
    right, third = [*PROMPT[:20], *OTHER[:3]], OTHER[20:50]
    expected = reference(executor, right, 3), reference(executor, third, 3)
    session = Session(executor)
    session.step(new_sequences=(new(1, PROMPT[:24], [0, 1]),))
    rows = (new(2, right, [0, 2], computed=20), new(3, third, [1, 3]))
    drawn = session.tokens(finished_ids=(1,), copies=(BlockCopy(1, 2),), new_sequences=rows)
    second = [drawn[2], *session.decode(2, 24, 2, [])]
    assert (second, [drawn[3], *session.decode(3, 31, 2, [])]) == expected
    assert set(residents(executor)) == {2, 3}


def test_blocks_of_a_finished_sequence_can_be_given_to_another_in_the_same_plan(executor: StepExecutor) -> None:
    expected = reference(executor, OTHER[:33], 5)
    session = Session(executor)
    session.step(new_sequences=(new(1, PROMPT[:48], [2, 1, 0]),))
    drawn = session.tokens(finished_ids=(1,), new_sequences=(new(2, OTHER[:33], [1, 0, 2]),))
    assert [drawn[2], *session.decode(2, 34, 4, [])] == expected


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("after", [1, 2, 6])
def test_a_preempted_sequence_goes_on_where_it_was(executor: StepExecutor, after: int, sampling: Sampling) -> None:
    expected = reference(executor, PROMPT[:13], 9, sampling)
    session = Session(executor)
    drawn = [session.tokens(new_sequences=(new(1, PROMPT[:13], [0], sampling=sampling),))[1]]
    drawn += session.decode(1, 14, after - 1, [1])
    back = new(1, [*PROMPT[:13], *drawn], [5, 6][: -(-(13 + after) // 16)], prompt=13, sampling=sampling)
    drawn.append(session.tokens(preempted_ids=(1,), new_sequences=(back,))[1])
    drawn += session.decode(1, len(PROMPT[:13]) + len(drawn), 9 - len(drawn), [7])
    assert drawn == expected


@pytest.mark.parametrize("how", ["finished_ids", "preempted_ids"])
def test_who_leaves_is_forgotten(executor: StepExecutor, how: str) -> None:
    session = Session(executor)
    session.step(new_sequences=(new(1, PROMPT[:5], [0]), new(2, OTHER[:5], [1])))
    session.step(**{how: (1,)})
    assert set(residents(executor)) == {2}
    with pytest.raises(InvalidPlan):
        session.step(scheduled=(grow(1),))
