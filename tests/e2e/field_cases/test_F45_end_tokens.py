"""A model with several end tokens stops at each, unless they are ignored or it is too early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from citybus import Completion, FinishReason
from tests.checkpoints import follow, write_chain
from tests.e2e.field_cases.field import Field, running_field, together

FIRST, SECOND = 2, 7
SCRIPT = follow(*b"@abcd", SECOND, *b"efgh", FIRST, *b"ijkl", 0, ord("z"), 0)
"""The second end token comes as number 5, the first as number 10; after "l", "\\0z" for ever."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("ends")
    model = write_chain(folder / "chain", SCRIPT, eos=FIRST, generation_eos=[FIRST, SECOND], max_model_len=64)
    with running_field(model, folder / "bus", executor=("--num-blocks", 64)) as field:
        yield field


@pytest.fixture
def ends(session: Field) -> Iterator[Field]:
    yield session
    session.check()


def say(field: Field, **options: Any) -> Completion:
    return field.client.complete("@", **{"temperature": 0, "max_tokens": 20, **options})


def test_F45_each_end_token_ends_the_answer_and_gives_no_text(ends: Field) -> None:
    answer = say(ends)
    assert (answer.text, answer.finish.reason, answer.finish.stop_token_id) == ("abcd", FinishReason.STOP, SECOND)
    assert answer.finish.usage.completion_tokens == 5


def test_F45_ignored_end_tokens_are_passed_and_a_stop_token_still_ends(ends: Field) -> None:
    answer = say(ends, ignore_eos=True)
    assert answer.finish.reason is FinishReason.LENGTH
    assert answer.token_ids[:14] == (*b"abcd", SECOND, *b"efgh", FIRST, *b"ijkl")
    assert say(ends, ignore_eos=True, stop_token_ids=[ord("f")]).text == "abcd\x07e"
    early = say(ends, ignore_eos=True, min_tokens=10)
    assert early.token_ids == answer.token_ids, "what does not end the answer is not barred"


def test_F45_min_tokens_bars_every_end_token(ends: Field) -> None:
    """In place of the end token comes the likeliest of the others: of equals the lowest id, which is 0."""
    answer = say(ends, min_tokens=10)
    assert answer.token_ids[:7] == (*b"abcd", 0, ord("z"), 0)
    assert answer.finish.reason is FinishReason.LENGTH
    assert say(ends, min_tokens=4).finish.usage.completion_tokens == 5, "number 5 is not too early"
    assert say(ends, min_tokens=5).finish.reason is FinishReason.LENGTH
    barred = say(ends, min_tokens=2, stop_token_ids=[ord("b"), ord("z")])
    assert (barred.token_ids, barred.finish.stop_token_id) == ((*b"a\0z",), ord("z"))


def test_F45_unequal_lengths_share_a_batch_without_a_pad_token(ends: Field) -> None:
    prompts = [[ord("x")] * length + [ord("@")] for length in (0, 1, 15, 16, 17, 40)]
    with ends.paused():
        rides = [ends.start(prompt, 9, ignore_eos=False) for prompt in prompts]
    assert [answer.text for answer in together([ride.read for ride in rides])] == ["abcd"] * len(prompts)
