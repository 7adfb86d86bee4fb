"""What every step executor refuses, and what a failed step costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from common.step import (
    BlockCopy,
    Fork,
    InvalidPlan,
    SealedBlock,
)
from common.step_executor import StepExecutor
from tests.contract.session import (
    NUM_BLOCKS,
    OTHER,
    PROMPT,
    Session,
    cached,
    grow,
    new,
    reference,
    residents,
)
from tests.contract.subjects import Subject
from tests.contract.wire_executor import WireExecutor


def resident_two(session: Session) -> None:
    """1: 20 tokens in blocks 0 and 1, all computed but the last drawn. 2: 40 tokens, 16 computed in block 2."""
    session.step(new_sequences=(new(1, PROMPT[:20], [0, 1]), new(2, OTHER[:40], [2], count=16)))


INVALID: dict[str, Callable[[Session], dict[str, Any]]] = {
    "a sequence nobody knows": lambda session: {"scheduled": (grow(9),)},
    "a sequence nobody knows leaves": lambda session: {"finished_ids": (9,)},
    "a sequence nobody knows is preempted": lambda session: {"preempted_ids": (9,)},
    "it leaves twice": lambda session: {"finished_ids": (1, 1)},
    "it leaves in both ways": lambda session: {"finished_ids": (1,), "preempted_ids": (1,)},
    "it leaves and computes": lambda session: {"finished_ids": (1,), "scheduled": (grow(1),)},
    "two rows for one": lambda session: {"scheduled": (grow(1), grow(1))},
    "new and known": lambda session: {"new_sequences": (new(1, PROMPT[:3], [5]),)},
    "new twice": lambda session: {"new_sequences": (new(5, PROMPT[:3], [5]), new(5, PROMPT[:3], [6]))},
    "a block is missing": lambda session: {"scheduled": (grow(2, count=16),)},
    "a block too many": lambda session: {"scheduled": (grow(1, 5),)},
    "a new one with a block too few": lambda session: {"new_sequences": (new(5, PROMPT[:17], [5]),)},
    "a new one with a block too many": lambda session: {"new_sequences": (new(5, PROMPT[:16], [5, 6]),)},
    "a block outside the pool": lambda session: {"scheduled": (grow(2, NUM_BLOCKS, count=16),)},
    "a new one outside the pool": lambda session: {"new_sequences": (new(5, PROMPT[:3], [NUM_BLOCKS]),)},
    "a block twice in a table": lambda session: {"new_sequences": (new(5, PROMPT[:32], [5, 5]),)},
    "its own block again": lambda session: {"scheduled": (grow(2, 2, count=16),)},
    "more tokens than are known": lambda session: {"scheduled": (grow(1, count=2),)},
    "more new tokens than are known": lambda session: {"new_sequences": (new(5, PROMPT[:3], [5], count=4),)},
    "no tokens": lambda session: {"scheduled": (grow(2, count=0),)},
    "no new tokens": lambda session: {"new_sequences": (new(5, PROMPT[:16], [5], computed=16),)},
    "no prompt": lambda session: {"new_sequences": (new(5, PROMPT[:3], [5], prompt=0),)},
    "more prompt than tokens": lambda session: {"new_sequences": (new(5, PROMPT[:3], [5], prompt=4),)},
    "a fork of nobody": lambda session: {"forks": (Fork(9, 8, 3, 0, (5,)),)},
    "a fork of one that leaves": lambda session: {"finished_ids": (1,), "forks": (Fork(9, 1, 3, 2),)},
    "it leaves and is forked": lambda session: {"finished_ids": (2,), "forks": (Fork(2, 1, 3, 2),)},
    "it computes and is forked": lambda session: {"scheduled": (grow(1),), "forks": (Fork(1, 1, 3, 2),)},
    "forked twice to one id": lambda session: {"forks": (Fork(9, 1, 3, 1, (5,)), Fork(9, 1, 4, 1, (6,)))},
    "a fork that writes what its parent has": lambda session: {"forks": (Fork(9, 1, 3, 2),)},
    "two forks in one block": lambda session: {"forks": (Fork(1, 1, 3, 2), Fork(9, 1, 4, 2))},
    "a fork that keeps more than there is": lambda session: {"forks": (Fork(1, 1, 3, 3),)},
    "a fork with a block too few": lambda session: {"forks": (Fork(1, 1, 3, 1),)},
    "a fork with a block too many": lambda session: {"forks": (Fork(1, 1, 3, 2, (5,)),)},
    "a fork outside the pool": lambda session: {"forks": (Fork(1, 1, 3, 1, (NUM_BLOCKS,)),)},
    "a fork outside the vocabulary": lambda session: {"forks": (Fork(1, 1, 10**6, 2),)},
    "no tokens at all": lambda session: {"new_sequences": (new(5, [], []),)},
    "a token outside the vocabulary": lambda session: {
        "new_sequences": (new(5, [session.executor.describe().vocab_size], [5]),)
    },
    "a token far outside": lambda session: {"new_sequences": (new(5, [2**32 - 1], [5]),)},
    "longer than the context": lambda session: {"new_sequences": (new(5, [1] * 513, [5], count=16),)},
    "a block of another is written": lambda session: {"scheduled": (grow(2, 1, count=16),)},
    "a new one writes a block of another": lambda session: {"new_sequences": (new(5, PROMPT[:3], [0]),)},
    "a new one goes on in a block of another": lambda session: {
        "new_sequences": (new(5, PROMPT[:24], [0, 1], computed=20),)
    },
    "two new ones write one block": lambda session: {
        "new_sequences": (new(5, PROMPT[:3], [5]), new(6, PROMPT[:3], [5]))
    },
    "two write one block": lambda session: {
        "new_sequences": (new(5, PROMPT[:3], [5]),),
        "scheduled": (grow(2, 5, count=16),),
    },
    "a copy over a held block": lambda session: {"copies": (BlockCopy(0, 2),)},
    "two copies to one block": lambda session: {"copies": (BlockCopy(0, 5), BlockCopy(1, 5))},
    "a copy of a copy": lambda session: {"copies": (BlockCopy(0, 5), BlockCopy(5, 6))},
    "a copy from outside the pool": lambda session: {"copies": (BlockCopy(NUM_BLOCKS, 5),)},
    "a copy to outside the pool": lambda session: {"copies": (BlockCopy(0, NUM_BLOCKS),)},
    "a seal outside the pool": lambda session: {"sealed": (SealedBlock(NUM_BLOCKS, bytes(16)),)},
    "more rows than seats": lambda session: {
        "new_sequences": tuple(new(10 + key, PROMPT[:2], [5 + key]) for key in range(17))
    },
    "more tokens than a step computes": lambda session: {
        "new_sequences": (
            new(5, [*PROMPT, 1], range(5, 10)),
            new(6, OTHER, range(10, 14)),
        )
    },
    "a step is left out": lambda session: {"step": 3},
    "a step again": lambda session: {"step": 1},
    "a term that was never granted": lambda session: {"term": session.term + 1},
}


@pytest.mark.parametrize("fault", INVALID)
def test_an_invalid_plan_ends_the_session_and_changes_nothing(executor: StepExecutor, fault: str) -> None:
    expected = reference(executor, PROMPT[:20], 3), reference(executor, OTHER[:40], 1)
    session = Session(executor)
    resident_two(session)
    before, last_step = residents(executor), session.number
    with pytest.raises(InvalidPlan) as refusal:
        session.step(**INVALID[fault](session))
    assert "\n" not in str(refusal.value)
    session.reopen(resume=True)
    assert residents(executor) == before
    session.number = last_step
    drawn = [before[1].token_ids[20], *session.decode(1, 21, 2, [])]
    assert (drawn, [session.tokens(scheduled=(grow(2, 7, 8, count=24),))[2]]) == expected


def test_a_failed_step_drops_its_own_sequences_and_no_others(subject: Subject) -> None:
    executor = subject.executor
    expected = reference(executor, OTHER[:15], 5)
    session = Session(executor)
    drawn = [session.tokens(new_sequences=(new(1, PROMPT[:16], [0]), new(2, OTHER[:15], [1])))[2]]
    subject.fail_next()
    seal = SealedBlock(3, b"s" * 16)
    result = session.step(new_sequences=(new(3, PROMPT[:16], [3]),), scheduled=(grow(1, 2),), sealed=(seal,))
    assert result.step == session.number
    assert result.error
    assert "\n" not in result.error
    assert result.sampled == ()
    assert set(residents(executor)) == {2}
    assert cached(executor) == {}, "what the step was to fill is not known"
    drawn += session.decode(2, 16, 4, [0])
    assert drawn == expected
    assert session.tokens(new_sequences=(new(1, PROMPT[:16], [2]),))[1] == reference(executor, PROMPT[:16], 1)[0]


def test_plans_behind_a_refused_one_are_not_executed(subject: Subject) -> None:
    executor = subject.executor
    session = Session(executor)
    resident_two(session)
    refused, behind = session.plan(scheduled=(grow(9),)), session.plan(finished_ids=(1,))
    if isinstance(executor, WireExecutor):
        executor.send(refused)
        executor.send(behind)
        with pytest.raises(InvalidPlan):
            executor.receive()
    else:
        for plan in (refused, behind):
            with pytest.raises(InvalidPlan):
                executor.step(plan)
    session.reopen(resume=True)
    assert set(residents(executor)) == {1, 2}
