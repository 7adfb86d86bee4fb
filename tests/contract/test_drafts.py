"""Guesses at what is drawn, by every step executor: the fake one and the real engine, also over gRPC."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from common.step import Draft, InvalidPlan, Sampling, SealedBlock
from common.step_executor import StepExecutor
from tests.contract.session import GREEDY, OTHER, PROMPT, SAMPLED, Session, grow, new, reference, residents

SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


def guesses(expected: Sequence[int], right: int, wrong: int) -> tuple[int, ...]:
    """The next `right` tokens, and `wrong` others behind them."""
    return (*expected[:right], *((token + 1) % 101 for token in expected[right : right + wrong]))


@SAMPLINGS
@pytest.mark.parametrize(("right", "wrong"), [(0, 1), (0, 11), (1, 0), (1, 1), (4, 3), (10, 1), (11, 0)])
def test_the_right_guesses_and_one_more_are_drawn(
    executor: StepExecutor, sampling: Sampling, right: int, wrong: int
) -> None:
    """Beside two others. Then the answer goes on, over what was stored for wrong guesses, into the next block."""
    count = right + 1 + 16
    expected = reference(executor, PROMPT[:20], 1 + count, sampling)
    others = reference(executor, OTHER[:9], 2), reference(executor, OTHER[:15], 1, SAMPLED)
    session = Session(executor)
    first = session.tokens(new_sequences=(new(1, PROMPT[:20], [0, 1], sampling=sampling), new(2, OTHER[:9], [2])))
    assert first == {1: expected[0], 2: others[0][0]}
    result = session.step(
        new_sequences=(new(3, OTHER[:15], [3], sampling=SAMPLED),),
        scheduled=(grow(1), grow(2)),
        drafts=(Draft(1, guesses(expected[1:], right, wrong)),),
    )
    assert [tuple(token) for token in result.sampled] == [
        (3, others[1][0], None),
        *((1, token, None) for token in expected[1 : right + 2]),
        (2, others[0][1], None),
    ]
    held = residents(executor)[1]
    assert held.token_ids == (*PROMPT[:20], *expected[: right + 2])
    assert held.num_computed_tokens == 21 + right
    assert held.block_ids == (0, 1)
    length = 20 + right + 2
    assert session.decode(1, length, 15, range(5, 9)) == expected[right + 2 : right + 17]


@SAMPLINGS
def test_an_answer_by_guesses_alone(executor: StepExecutor, sampling: Sampling) -> None:
    """Right ones, and wrong ones behind them, in every step: the same answer in half the steps; what they filled is a
    prefix that others go on from."""
    expected = reference(executor, PROMPT[:5], 41, sampling)
    session = Session(executor)
    drawn = [session.tokens(new_sequences=(new(1, PROMPT[:5], [0], sampling=sampling),))[1]]
    free = iter(range(1, 9))
    while len(drawn) < 40:
        position = 5 + len(drawn) - 1
        added = (next(free),) if position % 16 == 0 else ()
        room = min(15 - position % 16, 40 - len(drawn))
        draft = guesses(expected[len(drawn) :], min(2, room), 1 if room > 2 else 0)
        drafts = (Draft(1, draft),) if draft else ()
        result = session.step(scheduled=(grow(1, *added),), drafts=drafts)
        drawn += [token.token_id for token in result.sampled]
    assert drawn == expected[: len(drawn)]
    assert session.number < 20
    session.step(finished_ids=(1,), sealed=(SealedBlock(0, b"0" * 16), SealedBlock(1, b"1" * 16)))
    tokens = [*PROMPT[:5], *expected[:35]]
    row = new(2, tokens, [0, 1, 9], computed=32, prompt=5, sampling=sampling)
    assert session.tokens(new_sequences=(row,)) == {2: expected[35]}


def test_several_sequences_have_drafts_in_one_step(executor: StepExecutor) -> None:
    lengths = {1: 3, 2: 15, 3: 16, 4: 17, 5: 30}
    expected = {key: reference(executor, PROMPT[:length], 3, SAMPLED) for key, length in lengths.items()}
    session, blocks = Session(executor), iter(range(20))
    rows = [
        new(key, PROMPT[:length], [next(blocks) for _ in range(-(-length // 16))], sampling=SAMPLED)
        for key, length in lengths.items()
    ]
    session.step(new_sequences=tuple(rows))
    drafts = tuple(Draft(key, (expected[key][1],)) for key in (1, 4, 5))
    result = session.step(scheduled=(grow(1), grow(2), grow(3, 15), grow(4), grow(5)), drafts=drafts)
    told: dict[int, list[int]] = {}
    for token in result.sampled:
        told.setdefault(token.sequence_id, []).append(token.token_id)
    assert told == {key: expected[key][1 : 3 if key in (1, 4, 5) else 2] for key in lengths}


NOT_PLAIN: dict[str, dict[str, Any]] = {
    "penalties": {"presence_penalty": 0.5},
    "log-probabilities": {"num_logprobs": 0},
    "banned tokens": {"banned_token_ids": (3,)},
}
INVALID: dict[str, Callable[[], dict[str, Any]]] = {
    "a draft of nobody": lambda: {"drafts": (Draft(9, (1,)),)},
    "a draft of one that computes nothing": lambda: {"drafts": (Draft(1, (1,)),)},
    "a draft of one that leaves": lambda: {"finished_ids": (1,), "drafts": (Draft(1, (1,)),)},
    "a draft of a new one": lambda: {"new_sequences": (new(5, PROMPT[:3], [5]),), "drafts": (Draft(5, (1,)),)},
    "two drafts of one": lambda: {"scheduled": (grow(1),), "drafts": (Draft(1, (1,)), Draft(1, (1,)))},
    "an empty draft": lambda: {"scheduled": (grow(1),), "drafts": (Draft(1, ()),)},
    "a draft of one that does not draw": lambda: {
        "scheduled": (grow(2, 5, count=16),),
        "drafts": (Draft(2, (1,)),),
    },
    "a draft that its last block has no room for": lambda: {
        "scheduled": (grow(1),),
        "drafts": (Draft(1, (1,) * 12),),
    },
    "a block for a draft": lambda: {"scheduled": (grow(1, 5),), "drafts": (Draft(1, (1,) * 12),)},
    "a token outside the vocabulary": lambda: {"scheduled": (grow(1),), "drafts": (Draft(1, (10**6,)),)},
    "more tokens than a step computes": lambda: {
        "new_sequences": (new(5, [1] * 120, range(5, 13)),),
        "scheduled": (grow(1),),
        "drafts": (Draft(1, (1,) * 8),),
    },
    **{
        f"a draft of one with {what}": lambda key=key: {"scheduled": (grow(key),), "drafts": (Draft(key, (1,)),)}
        for key, what in enumerate(NOT_PLAIN, start=10)
    },
}


def begun(executor: StepExecutor) -> Session:
    """1 has drawn its first token in blocks 0 and 1, 2 has computed 16 of 40 in block 2; 10 and more not plain."""
    session = Session(executor)
    rows = [new(1, PROMPT[:20], [0, 1]), new(2, OTHER[:40], [2], count=16)]
    rows += [
        new(key, PROMPT[:3], [key], sampling=replace(GREEDY, **more)) for key, more in enumerate(NOT_PLAIN.values(), 10)
    ]
    session.step(new_sequences=tuple(rows))
    return session


@pytest.mark.parametrize("fault", INVALID)
def test_an_invalid_draft_ends_the_session_and_changes_nothing(executor: StepExecutor, fault: str) -> None:
    expected = reference(executor, PROMPT[:20], 3)
    session = begun(executor)
    before, last_step = residents(executor), session.number
    with pytest.raises(InvalidPlan):
        session.step(**INVALID[fault]())
    session.reopen(resume=True)
    assert residents(executor) == before
    session.number = last_step
    assert session.decode(1, 21, 2, []) == expected[1:]


def test_a_draft_does_not_go_beyond_the_context(executor: StepExecutor) -> None:
    info = executor.describe()
    length, blocks = info.max_model_len - 3, range(-(-info.max_model_len // 16))
    session = Session(executor)
    chunks = [*range(0, length, 128), length]
    session.step(new_sequences=(new(1, [7] * length, blocks[:8], count=128),))
    for start, end in itertools.pairwise(chunks[1:]):
        session.step(scheduled=(grow(1, *blocks[start // 16 : -(-end // 16)], count=end - start),))
    number = session.number
    with pytest.raises(InvalidPlan):
        session.step(scheduled=(grow(1),), drafts=(Draft(1, (1, 2, 3)),))
    session.reopen(resume=True)
    session.number = number
    assert 1 <= len(session.step(scheduled=(grow(1),), drafts=(Draft(1, (1, 2)),)).sampled) <= 3
