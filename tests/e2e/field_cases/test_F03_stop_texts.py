"""Stop texts that span tokens: nothing of them is ever shown, and what cannot become one is not held back."""

from __future__ import annotations

from typing import Any

import pytest

from citybus import Completion, FinishReason
from tests.e2e.field_cases.field import Field


def say(field: Field, stop: list[str], max_tokens: int | None = None) -> tuple[list[str], Completion]:
    """The deltas, and the whole answer, of the CHAIN that says A B C D E F G, one token each."""
    options: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    with field.client.generate("@", temperature=0, stop=stop, **options) as stream:
        deltas = [delta.text for delta in stream]
    return deltas, field.client.complete("@", temperature=0, stop=stop, **options)


@pytest.mark.parametrize(
    ("stop", "shown", "matched", "num_tokens"),
    [
        (["DEFG"], "ABC", "DEFG", 7),
        (["FG", "DEFG"], "ABC", "DEFG", 7),
        (["DE", "CDEF"], "ABC", "DE", 5),
        (["A"], "", "A", 1),
        (["G"], "ABCDEF", "G", 7),
    ],
)
def test_F03_answer_ends_before_the_earliest_match(
    chain_field: Field, stop: list[str], shown: str, matched: str, num_tokens: int
) -> None:
    deltas, whole = say(chain_field, stop)
    assert "".join(deltas) == whole.text == shown
    assert (whole.finish.reason, whole.finish.stop_text) == (FinishReason.STOP, matched)
    assert whole.finish.usage.completion_tokens == len(whole.token_ids) == num_tokens


def test_F03_held_text_is_released_as_soon_as_the_match_fails(chain_field: Field) -> None:
    with chain_field.client.generate("@", temperature=0, stop=["DEFX"]) as stream:
        parts = [(delta.text, delta.token_ids) for delta in stream]
    shown = "".join(text for text, _ in parts)
    assert shown == "ABCDEFG"
    carrier = next(tokens for text, tokens in parts if "D" in text)
    assert ord("G") in carrier, "D to F come with the token that disproves the match"
    assert stream.finish.stop_text is None


@pytest.mark.parametrize("max_tokens", [4, 5, 6])
def test_F03_held_text_is_flushed_when_the_limit_cuts_a_possible_match(chain_field: Field, max_tokens: int) -> None:
    deltas, whole = say(chain_field, ["DEFG"], max_tokens)
    assert "".join(deltas) == whole.text == "ABCDEFG"[:max_tokens]
    assert whole.finish.reason is FinishReason.LENGTH
    assert whole.finish.usage.completion_tokens == max_tokens


def test_F03_stop_that_is_included_is_shown_and_nothing_after_it(chain_field: Field) -> None:
    answer = chain_field.client.complete("@", temperature=0, stop=["DEFG", "CD"], include_stop=True)
    assert (answer.text, answer.finish.stop_text, len(answer.token_ids)) == ("ABCD", "CD", 4)


def test_F03_stop_token_that_is_included_is_shown_where_it_has_text(chain_field: Field) -> None:
    stop_at_d: dict[str, Any] = {"temperature": 0, "stop_token_ids": [ord("D")]}
    hidden = chain_field.client.complete("@", **stop_at_d)
    shown = chain_field.client.complete("@", include_stop=True, **stop_at_d)
    assert (hidden.text, shown.text) == ("ABC", "ABCD")
    assert hidden.token_ids == shown.token_ids and shown.finish.stop_token_id == ord("D")
    ended = chain_field.client.complete("!", temperature=0, include_stop=True)
    assert ended.text == "hi", "a special token has no text"
    special = chain_field.client.complete("!", temperature=0, include_stop=True, skip_special_tokens=False)
    assert special.text == "hi<|eos|>"


@pytest.mark.parametrize(
    ("min_tokens", "stop", "text"),
    [
        (0, ["BC"], "A"),
        (3, ["BC"], "A"),
        (4, ["BC"], "ABCDEFG"),
        (4, ["BC", "E"], "ABCD"),
        (4, ["CD"], "AB"),
        (7, ["G", "A"], "ABCDEF"),
    ],
)
def test_F03_stop_that_is_complete_too_early_does_not_count(
    chain_field: Field, min_tokens: int, stop: list[str], text: str
) -> None:
    deltas = [delta.text for delta in chain_field.client.generate("@", temperature=0, stop=stop, min_tokens=min_tokens)]
    assert "".join(deltas) == text
