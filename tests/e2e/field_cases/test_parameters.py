"""Bias, bans, bad words and echo through the wire, and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from citybus import InvalidRequest
from tests.checkpoints import BOS, EOS, VOCAB_SIZE
from tests.e2e.field_cases.field import Field

PROMPT = [31, 32, 33]


def test_a_bias_of_100_forces_a_token_and_of_minus_100_bans_it(tiny_field: Field) -> None:
    drawn: dict[str, Any] = {"temperature": 1.0, "seed": 2}
    plain = tiny_field.ask(PROMPT, 20, **drawn).token_ids
    assert tiny_field.ask(PROMPT, 20, logit_bias={200: 100.0}, **drawn).token_ids == (200,) * 20
    banned = tiny_field.ask(PROMPT, 20, logit_bias=dict.fromkeys(plain, -100.0), **drawn).token_ids
    assert set(banned).isdisjoint(plain)
    assert set(tiny_field.ask(PROMPT, 20, banned_token_ids=plain, **drawn).token_ids).isdisjoint(plain)
    allowed = tiny_field.ask(PROMPT, 20, allowed_token_ids=[5, 6, VOCAB_SIZE - 1], **drawn).token_ids
    assert set(allowed) <= {5, 6, VOCAB_SIZE - 1}


def test_bad_words_do_not_come(chain_field: Field) -> None:
    """CHAIN says ABCDEFG; where a letter is banned, the lowest id comes, and after it the end token."""

    def say(*words: str) -> str:
        return chain_field.client.complete("@", temperature=0, bad_words=words).text

    assert say("X", "BD", "GA") == "ABCDEFG"
    assert say("C") == "AB\0"
    assert say("BCD") == "ABC\0"
    assert say("@A") == "ABCDEFG", "the prompt does not count"


def test_echo_gives_the_prompt_as_tokens_and_text(chain_field: Field) -> None:
    text = chain_field.client.complete("é@", temperature=0, echo=True)
    assert text.prompt is not None
    assert (text.text, text.prompt.text, text.prompt.token_ids) == ("ABCDEFG", "é@", (BOS, *"é@".encode()))
    assert text.prompt.logprobs == ()
    shown = chain_field.client.complete("@", temperature=0, echo=True, skip_special_tokens=False)
    assert shown.prompt is not None and shown.prompt.text == "<|bos|>@"
    turns = chain_field.client.complete(messages=[{"role": "user", "content": "@"}], temperature=0, echo=True)
    assert turns.prompt is not None and turns.prompt.text.startswith("user\n@\n")
    assert chain_field.client.complete("@", temperature=0).prompt is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 101.0}, "sampling.repetition_penalty must be over 0 and at most 100"),
        ({"presence_penalty": 2.5}, "sampling.presence_penalty must be from -2 to 2"),
        ({"frequency_penalty": -2.5}, "sampling.frequency_penalty must be from -2 to 2"),
        ({"logit_bias": {3: 101.0}}, "sampling.logit_bias: each must be from -100 to 100"),
        ({"logit_bias": {3: float("nan")}}, "sampling.logit_bias: each must be from -100 to 100"),
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "sampling.logit_bias: 272 is over 271, the model's largest"),
        ({"allowed_token_ids": [VOCAB_SIZE]}, "sampling.allowed_token_ids: 272 is over 271, the model's largest"),
        ({"banned_token_ids": [2**32 - 1]}, "sampling.banned_token_ids: 4294967295 is over 271, the model's largest"),
        ({"allowed_token_ids": [EOS], "min_tokens": 1}, "sampling.allowed_token_ids: none is left of them"),
        ({"allowed_token_ids": [65], "bad_words": ["A"]}, "sampling.allowed_token_ids: none is left of them"),
        ({"bad_words": [""]}, "sampling.bad_words: each text must have 1 to 128 characters"),
        ({"min_tokens": 9, "max_tokens": 8}, "stopping.min_tokens must be at most max_tokens, which is 8"),
        ({"logprobs": 21}, "output.logprobs must be at most 20"),
    ],
)
def test_what_is_refused_is_named_and_disturbs_nobody(
    chain_field: Field, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chain_field.client.complete("@", temperature=0, **options)
    assert str(refused.value).startswith(message)
