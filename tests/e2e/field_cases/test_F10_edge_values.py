"""Values at the edges of what sampling takes."""

from __future__ import annotations

from typing import Any

import pytest

from citybus import InvalidRequest
from tests.checkpoints import VOCAB_SIZE
from tests.e2e.field_cases.field import Field

PROMPT = [11, 12, 13]
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 4}


def test_F10_every_spelling_of_off_draws_the_same(tiny_field: Field) -> None:
    """Equal tokens from equal seeds: the distributions are the same ones."""
    off = tiny_field.ask(PROMPT, 60, **SEEDED).token_ids
    assert len(set(off)) > 1
    for options in ({"top_k": 0}, {"top_k": -1}, {"top_k": VOCAB_SIZE}, {"top_k": VOCAB_SIZE + 5}, {"top_p": 1.0}):
        assert tiny_field.ask(PROMPT, 60, **SEEDED, **options).token_ids == off


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 0.0, "seed": 9},
        {"temperature": 1e-9},
        {"temperature": 1e-5},
        {"temperature": 1e-3},
    ],
)
def test_F10_what_amounts_to_greedy(tiny_field: Field, options: dict[str, Any]) -> None:
    assert tiny_field.ask(PROMPT, 30, **options).token_ids == tiny_field.ask(PROMPT, 30).token_ids


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty"),
    ],
)
def test_F10_what_is_outside_is_refused_by_name(tiny_field: Field, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^sampling\.{field} must be "):
        tiny_field.ask(PROMPT, 2, **options)


def test_F10_all_but_one_pressed_down(tiny_field: Field) -> None:
    bias = dict.fromkeys((token for token in range(VOCAB_SIZE) if token != 99), -100.0)
    answer = tiny_field.ask(PROMPT, 6, logit_bias=bias, top_k=5, logprobs=1, **SEEDED)
    assert answer.token_ids == (99,) * 6
    assert all(score.logprob is not None and score.logprob <= 0 for score in answer.logprobs)


def test_F10_of_equals_greedy_always_takes_the_lowest(chain_field: Field) -> None:
    """Of CHAIN's logits all but one are equal: without that one, the lowest allowed id comes."""
    answer = chain_field.ask(list(b"@"), 3, banned_token_ids=list(b"A"), logprobs=3)
    assert answer.token_ids[0] == 0
    assert answer.logprobs[0].top_ids == (ord("A"), 0, 1)
