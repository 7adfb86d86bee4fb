"""Penalties, bias and bans through the engine: transformers' tokens, or plain Python's, in any batch and chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from common.step import Sampling
from executor_svc.engine import Engine
from tests.checkpoints import BOS
from tests.executor.conftest import MakeEngine
from tests.executor.driver import GREEDY, generate

COUNT = 20
LENGTHS = (15, 16, 17, 31, 32, 33)
PROMPTS = [[BOS, *((7 * length + 3 * index) % 250 for index in range(1, length))] for length in LENGTHS]
CHUNKS = [[512], [1, 7, 16]]

Choose = Callable[[torch.Tensor, Sequence[int], Sequence[int]], None]
"""Changes the logits [vocab_size], given the prompt and the answer so far."""


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)


def reference(model: Any, prompt: Sequence[int], choose: Choose) -> list[int]:
    """Greedy tokens of a dense forward pass whose logits `choose` has changed."""
    output: list[int] = []
    for _ in range(COUNT):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *output]])).logits[0, -1].double().clone()
        choose(logits, prompt, output)
        output.append(int(logits.argmax()))
    return output


def penalise(presence: float, frequency: float) -> Choose:
    def choose(logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        for token in set(output):
            logits[token] -= presence + frequency * output.count(token)

    return choose


def bias(of: dict[int, float]) -> Choose:
    def choose(logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        for token, number in of.items():
            logits[token] += number

    return choose


def only(allowed: Sequence[int]) -> Choose:
    def choose(logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        kept = logits[list(allowed)].clone()
        logits[:] = -torch.inf
        logits[list(allowed)] = kept

    return choose


def without(*words: tuple[int, ...]) -> Choose:
    def choose(logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        for *before, last in words:
            if list(output[len(output) - len(before) :]) == before:
                logits[last] = -torch.inf

    return choose


def not_before(least: int, ends: Sequence[int]) -> Choose:
    def choose(logits: torch.Tensor, prompt: Sequence[int], output: Sequence[int]) -> None:
        if len(output) < least:
            logits[list(ends)] = -torch.inf

    return choose


@pytest.mark.parametrize("chunks", CHUNKS)
def test_a_repetition_penalty_is_that_of_transformers(make_engine: MakeEngine, model: Any, chunks: list[int]) -> None:
    """RepetitionPenaltyLogitsProcessor: over prompt and answer."""
    expected = [
        model.generate(
            torch.tensor([prompt]),
            max_new_tokens=COUNT,
            min_new_tokens=COUNT,
            do_sample=False,
            eos_token_id=None,
            repetition_penalty=1.4,
        )[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]
    engine = make_engine(num_blocks=4096)
    sampling = replace(GREEDY, repetition_penalty=1.4)
    assert generate(engine, PROMPTS, COUNT, samplings=[sampling] * len(PROMPTS), chunks=chunks) == expected
    again = generate(engine, PROMPTS, COUNT, samplings=[sampling] * len(PROMPTS), chunks=chunks, preempt=0.2)
    assert again == expected
    assert expected != generate(engine, PROMPTS, COUNT)


def cases(model: Any) -> list[tuple[Sampling, Choose]]:
    """Each made so that it changes the tokens of PROMPTS[0]."""
    plain = reference(model, PROMPTS[0], lambda *_: None)
    word = tuple(plain[4:7])
    ends = (plain[2], plain[9])
    return [
        (replace(GREEDY, presence_penalty=1.5), penalise(1.5, 0.0)),
        (replace(GREEDY, frequency_penalty=-4.0), penalise(0.0, -4.0)),
        (replace(GREEDY, presence_penalty=-0.5, frequency_penalty=2.0), penalise(-0.5, 2.0)),
        (replace(GREEDY, logit_bias=((plain[0], -100.0), (200, 3.5))), bias({plain[0]: -100.0, 200: 3.5})),
        (replace(GREEDY, allowed_token_ids=(5, 40, 77, 200, 271)), only((5, 40, 77, 200, 271))),
        (replace(GREEDY, banned_token_ids=tuple(plain[:3])), without(*((token,) for token in plain[:3]))),
        (replace(GREEDY, bad_words=(word, (plain[0],))), without(word, (plain[0],))),
        (replace(GREEDY, bad_words=(word,)), without(word)),
        (replace(GREEDY, min_tokens=5, end_token_ids=ends), not_before(5, ends)),
    ]


def test_every_other_field_against_plain_python(make_engine: MakeEngine, model: Any) -> None:
    """All of them in one batch, beside rows that ask for nothing; then preempted."""
    asked = cases(model)
    prompt = PROMPTS[0]
    plain = reference(model, prompt, lambda *_: None)
    expected = [reference(model, prompt, choose) for _, choose in asked]
    assert all(output != plain for output in expected)
    engine = make_engine(num_blocks=8192)
    samplings = [each for sampling, _ in asked for each in (sampling, GREEDY)]
    for chunks in CHUNKS:
        for preempt in (0.0, 0.2):
            outputs = generate(
                engine, [prompt] * len(samplings), COUNT, samplings=samplings, chunks=chunks, preempt=preempt
            )
            assert outputs[0::2] == expected
            assert outputs[1::2] == [plain] * len(asked)


def test_seeded_draws_with_penalties_do_not_depend_on_the_batch(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=4096)
    samplings = [
        Sampling(0.9, seed=key, repetition_penalty=1.2, frequency_penalty=0.1 * key, num_logprobs=key % 3)
        for key in range(len(PROMPTS))
    ]
    alone = [
        generate(engine, [prompt], COUNT, samplings=[sampling])[0]
        for prompt, sampling in zip(PROMPTS, samplings, strict=True)
    ]
    assert generate(engine, PROMPTS, COUNT, samplings=samplings, chunks=[3, 16], preempt=0.15) == alone


def test_a_batch_where_nobody_asks_has_no_adjustments(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("logits are changed that nobody asked to change")

    monkeypatch.setattr("executor_svc.model_runner.adjust_logits", refuse)
    assert len(generate(engine, PROMPTS[:2], 3)[0]) == 3
