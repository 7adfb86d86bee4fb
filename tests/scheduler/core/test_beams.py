"""Beam search holds transformers' rules: the same answers and scores on a model with random weights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from common.logprobs import TokenLogprobs
from scheduler_svc.core.beams import BeamParams, BeamSearch, EarlyStopping

EOS = 3
PROMPT = [1, 2, 4]
EARLY: dict[EarlyStopping, Any] = {
    EarlyStopping.HEURISTIC: False,
    EarlyStopping.FULL: True,
    EarlyStopping.NEVER: "never",
}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """Random weights, loud enough that answers differ and end tokens are drawn now and then."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.6)
    return made


def theirs(
    model: LlamaForCausalLM, params: BeamParams, max_tokens: int, stops: Sequence[int]
) -> list[tuple[tuple[int, ...], float]]:
    config = GenerationConfig(
        num_beams=params.width,
        num_return_sequences=params.num_answers,
        max_new_tokens=max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=EARLY[params.early_stopping],
        eos_token_id=list(stops),
        pad_token_id=0,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    found: Any = model.generate(torch.tensor([PROMPT]), generation_config=config)
    answers = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        output = row[len(PROMPT) :]
        ends = [index for index, token in enumerate(output) if token in stops]
        answers.append((tuple(output[: ends[0] + 1] if ends else output), score))
    return answers


def ours(
    model: LlamaForCausalLM, params: BeamParams, max_tokens: int, stops: Sequence[int]
) -> list[tuple[tuple[int, ...], float]]:
    search = BeamSearch(params, frozenset(stops))
    while not search.is_over:
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *beam.tokens] for beam in search.beams])).logits[:, -1]
        top = logits.log_softmax(-1).topk(params.width + len(stops))
        columns = zip(top.indices.tolist(), top.values.tolist(), strict=True)
        search.advance([TokenLogprobs(0.0, 1, tuple(ids), tuple(values)) for ids, values in columns], max_tokens)
    return [(answer.tokens, answer.score) for answer in search.answers[: params.num_answers]]


@pytest.mark.parametrize("early_stopping", list(EarlyStopping))
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -0.5])
@pytest.mark.parametrize(("width", "num_answers"), [(2, 2), (4, 1), (5, 5), (7, 3)])
def test_answers_are_those_of_transformers(
    model: LlamaForCausalLM, width: int, num_answers: int, length_penalty: float, early_stopping: EarlyStopping
) -> None:
    chance = random.Random(width)
    params = BeamParams(width, num_answers, length_penalty, early_stopping)
    for max_tokens in (1, 2, 9, 16):
        stops = chance.sample(range(40), 3)
        expected, found = theirs(model, params, max_tokens, stops), ours(model, params, max_tokens, stops)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_a_search_that_starts_over_comes_to_the_same_end(model: LlamaForCausalLM) -> None:
    params = BeamParams(3, 3)
    search = BeamSearch(params, frozenset([EOS]))
    likeliest = TokenLogprobs(0.0, 1, (5, 6, 7, 3), (-0.5, -1.0, -2.0, -3.0))
    while search.length < 4:
        search.advance([likeliest] * len(search.beams), 6)
    first = list(search.beams)
    search.start_over()
    assert (search.beams[0].tokens, search.answers, search.is_over) == ((), [], False)
    while search.length < 4:
        search.advance([likeliest] * len(search.beams), 6)
    assert search.beams == first
