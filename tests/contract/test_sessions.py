"""Facts, sessions, terms and epochs of every step executor."""

from __future__ import annotations

import pytest

from common.step import (
    SealedBlock,
    StaleTerm,
    StepPlan,
)
from common.step_executor import StepExecutor
from tests.contract.session import (
    NUM_BLOCKS,
    PROMPT,
    Session,
    cached,
    new,
    reference,
    residents,
)


def test_facts_do_not_change(executor: StepExecutor) -> None:
    info = executor.describe()
    Session(executor)
    assert executor.describe() == info
    assert len(info.epoch) == 16
    assert (info.block_size, info.num_blocks, info.max_sequences, info.max_step_tokens) == (16, NUM_BLOCKS, 16, 128)
    assert info.vocab_size > 100
    assert info.max_model_len == 512


def test_each_session_has_a_larger_term_and_ends_the_one_before(executor: StepExecutor) -> None:
    first = Session(executor)
    second = Session(executor)
    assert second.term > first.term
    with pytest.raises(StaleTerm):
        executor.step(StepPlan(first.term, 1))
    third = Session(executor)
    assert third.term > second.term
    assert third.step().step == 1


def test_another_epoch_is_refused_and_takes_nothing_over(executor: StepExecutor) -> None:
    session = Session(executor)
    session.tokens(new_sequences=(new(1, PROMPT[:5], [0]),))
    with pytest.raises(StaleTerm):
        executor.open(b"another epoch...", True)
    assert set(residents(executor)) == {1}


def test_a_session_that_resumes_finds_everything_and_another_one_nothing(executor: StepExecutor) -> None:
    expected = reference(executor, PROMPT[:20], 3)
    session = Session(executor)
    drawn = [session.tokens(new_sequences=(new(1, PROMPT[:20], [3, 4]),), sealed=(SealedBlock(3, b"n" * 16),))[1]]
    held = residents(executor)
    session.reopen(resume=True)
    assert residents(executor) == held
    assert cached(executor) == {3: b"n" * 16}
    drawn += session.decode(1, 21, 2, [])
    assert drawn == expected
    session.reopen(resume=False)
    assert residents(executor) == {}
    assert cached(executor) == {}
    session.number = 0
    assert session.step().step == 1


def test_a_session_may_begin_with_any_step_and_then_counts_on(executor: StepExecutor) -> None:
    session = Session(executor)
    session.number = 1000
    assert session.step().step == 1001
    assert session.step().step == 1002
