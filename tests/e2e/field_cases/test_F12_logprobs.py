"""Log-probabilities are the model's own: their values, their number and their order."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from citybus import Completion, InvalidRequest
from tests.e2e.field_cases.field import Field, together

PROMPT = [5, 6, 7, 8]
COUNT = 8


def dense(model: Path, tokens: list[int]) -> torch.Tensor:
    """Float64 log-softmax [tokens, vocab_size] of a dense forward pass."""
    loaded: Any = LlamaForCausalLM.from_pretrained(model, dtype=torch.float64)
    with torch.no_grad():
        logits: torch.Tensor = loaded(torch.tensor([tokens])).logits[0]
    return logits.log_softmax(-1)


def check(answer: Completion, scores: torch.Tensor, count: int) -> None:
    """`scores` are those of prompt and answer."""
    assert len(answer.logprobs) == len(answer.token_ids) == COUNT
    for index, (token, score) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
        expected = scores[len(PROMPT) + index - 1]
        assert score.logprob is not None and math.isfinite(score.logprob)
        assert score.logprob == pytest.approx(expected[token].item(), abs=1e-4)
        assert score.rank == 1 + int((expected > expected[token]).sum())
        assert score.top_ids == tuple(expected.topk(count).indices.tolist())
        assert score.top_logprobs == tuple(sorted(score.top_logprobs, reverse=True))
        assert score.top_logprobs == pytest.approx(expected.topk(count).values.tolist(), abs=1e-4)
        assert sum(map(math.exp, score.top_logprobs)) <= 1 + 1e-5


@pytest.mark.parametrize("count", [0, 1, 5, 20])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5, "seed": 1},
        {"temperature": 2.0, "seed": 1, "logit_bias": {9: 5.0}, "presence_penalty": 2},
    ],
)
def test_F12_they_do_not_depend_on_what_is_done_to_the_logits(
    tiny: Path, tiny_field: Field, count: int, options: dict[str, Any]
) -> None:
    answer = tiny_field.ask(PROMPT, COUNT, logprobs=count, **options)
    check(answer, dense(tiny, [*PROMPT, *answer.token_ids]), count)
    assert answer.token_ids == tiny_field.ask(PROMPT, COUNT, **options).token_ids
    assert tiny_field.ask(PROMPT, COUNT, **options).logprobs == ()


def test_F12_a_batch_of_eight_has_the_numbers_of_one(tiny_field: Field) -> None:
    alone = tiny_field.ask(PROMPT, COUNT, logprobs=20).logprobs
    with tiny_field.paused():
        rides = [tiny_field.start(PROMPT, COUNT, logprobs=20 * (seat % 2), temperature=seat / 4) for seat in range(8)]
    answers = together([ride.read for ride in rides])
    assert answers[0].logprobs == tuple(type(score)(score.logprob, score.rank, (), ()) for score in alone)
    assert all(len(answer.logprobs) == COUNT for answer in answers)


def test_F12_more_than_twenty_are_refused(tiny_field: Field) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(InvalidRequest, match=rf"^output\.{name} must be at most 20$"):
            tiny_field.ask(PROMPT, 1, **{name: 21})
