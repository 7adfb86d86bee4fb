"""Sequences that go on from others, by every step executor: the fake one and the real engine, also over gRPC."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.step import BlockCopy, Fork
from common.step_executor import StepExecutor
from tests.contract.session import GREEDY, PROMPT, Session, cached, new, reference, residents

SCORED = replace(GREEDY, num_logprobs=6)


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_a_fork_draws_what_a_sequence_with_its_tokens_draws(executor: StepExecutor, length: int) -> None:
    """Three children of one parent with three tokens; then they change places, and one goes on twice."""
    prompt, whole, inside = PROMPT[:length], length // 16, length % 16 > 0
    first = {token: reference(executor, [*prompt, token], 1)[0] for token in (3, 4, 5)}
    pairs = ((5, 7), (3, 8), (3, 9))
    second = {pair: reference(executor, [*prompt, *pair], 1)[0] for pair in pairs}
    session = Session(executor)
    session.step(new_sequences=(new(1, prompt, range(-(-length // 16)), sampling=SCORED),))
    if inside:
        copies = (BlockCopy(whole, 20), BlockCopy(whole, 21))
        forks = (Fork(1, 1, 3, whole + 1), Fork(2, 1, 4, whole, (20,)), Fork(3, 1, 5, whole, (21,)))
    else:
        copies = ()
        forks = (Fork(1, 1, 3, whole, (20,)), Fork(2, 1, 4, whole, (21,)), Fork(3, 1, 5, whole, (22,)))
    assert session.tokens(copies=copies, forks=forks) == {1: first[3], 2: first[4], 3: first[5]}
    tables = {key: held.block_ids for key, held in residents(executor).items()}
    last = (length + 1) // 16
    if (length + 1) % 16:
        copies = (BlockCopy(tables[1][last], 25),)
        forks = (Fork(1, 3, 7, last + 1), Fork(2, 1, 8, last + 1), Fork(3, 1, 9, last, (25,)))
    else:
        copies = ()
        forks = (Fork(1, 3, 7, last, (24,)), Fork(2, 1, 8, last, (25,)), Fork(3, 1, 9, last, (26,)))
    assert session.tokens(copies=copies, forks=forks) == {1: second[5, 7], 2: second[3, 8], 3: second[3, 9]}
    held = residents(executor)
    assert held[2].token_ids[:-1] == (*prompt, 3, 8)
    assert held[2].num_computed_tokens == length + 2
    assert held[2].num_prompt_tokens == length
    assert held[2].sampling == SCORED
    session.step(finished_ids=(1, 2, 3))
    assert not residents(executor)


def test_forks_come_last_and_tell_the_likeliest(executor: StepExecutor) -> None:
    session = Session(executor)
    session.step(new_sequences=(new(7, PROMPT[:20], [0, 1], sampling=SCORED), new(2, PROMPT[:5], [2])))
    rows = (new(9, PROMPT[:4], [5]),)
    result = session.step(
        new_sequences=rows, forks=(Fork(8, 7, 3, 1, (6,)), Fork(7, 7, 4, 2)), copies=(BlockCopy(1, 6),)
    )
    assert [token.sequence_id for token in result.sampled] == [9, 8, 7]
    assert result.sampled[0].logprobs is None
    for token in result.sampled[1:]:
        assert token.logprobs is not None
        assert len(token.logprobs.top_ids) == 6
        assert list(token.logprobs.top_logprobs) == sorted(token.logprobs.top_logprobs, reverse=True)


def test_a_block_that_no_fork_keeps_can_be_given_to_another(executor: StepExecutor) -> None:
    """2's blocks leave with it: a fork takes its place, and in the same plan a new sequence has them."""
    expected = reference(executor, PROMPT[30:50], 1)[0]
    session = Session(executor)
    session.step(new_sequences=(new(1, PROMPT[:16], [0]), new(2, PROMPT[10:30], [1, 2])))
    drawn = session.tokens(forks=(Fork(2, 1, 9, 1, (5,)),), new_sequences=(new(3, PROMPT[30:50], [1, 2]),))
    assert drawn[3] == expected
    assert residents(executor)[2].block_ids == (0, 5)
    assert cached(executor) == {}
