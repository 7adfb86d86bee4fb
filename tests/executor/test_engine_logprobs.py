"""Log-probabilities of drawn and of prompt tokens: transformers' own, whatever the chunks and the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from common.logprobs import MAX_LOGPROBS, TokenLogprobs
from common.step import InvalidPlan, NewSequence, Sampling, ScheduledSequence, StepResult
from executor_svc.engine import Engine
from executor_svc.scores import split_logits
from executor_svc.sequence import HeldSequence, Row
from tests.checkpoints import BOS
from tests.executor.driver import GREEDY, Session, blocks_for

PROMPT = (BOS, *((5 * index + 3) % 250 for index in range(1, 37)))


def dense_logprobs(folder: Path, tokens: Sequence[int]) -> torch.Tensor:
    """Float64 log-softmax [tokens, vocab_size] of a dense forward pass."""
    model: Any = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits.log_softmax(-1)


def check(score: TokenLogprobs, dense: torch.Tensor, token_id: int, num_top: int) -> None:
    assert score.logprob == pytest.approx(dense[token_id].item(), abs=1e-4)
    assert score.rank == 1 + int((dense > dense[token_id]).sum())
    assert score.top_ids == tuple(dense.topk(num_top).indices.tolist())
    assert score.top_logprobs == pytest.approx(dense.topk(num_top).values.tolist(), abs=1e-4)


def new(engine: Engine, key: int, sampling: Sampling, num_tokens: int, first_block: int = 0) -> NewSequence:
    blocks = range(first_block, first_block + blocks_for(num_tokens, engine.describe().block_size))
    return NewSequence(key, PROMPT, len(PROMPT), 0, num_tokens, tuple(blocks), sampling)


def run(engine: Engine, sampling: Sampling, chunk: int) -> list[StepResult]:
    """The prompt in chunks, up to its first token."""
    session = Session(engine)
    size = engine.describe().block_size
    results = [session.step(new_sequences=(new(engine, 1, sampling, chunk),))]
    for start in range(chunk, len(PROMPT), chunk):
        end = min(start + chunk, len(PROMPT))
        blocks = tuple(range(blocks_for(start, size), blocks_for(end, size)))
        results.append(session.step(scheduled=(ScheduledSequence(1, end - start, blocks),)))
    return results


def test_the_logits_of_known_tokens_are_not_copied_and_stay_as_they_are() -> None:
    asking = replace(GREEDY, num_prompt_logprobs=3)
    rows = [
        Row(HeldSequence(number, [5] * 4, 4, 0, [], sampling, 0), 0, 4, draws=True)
        for number, sampling in enumerate((asking, GREEDY))
    ]
    logits = torch.arange(10.0).view(5, 2)
    drawn, known = split_logits(logits, rows)
    assert (drawn.tolist(), known) == ([[6.0, 7.0], [8.0, 9.0]], [0, 1, 2])
    drawn.fill_(-1)
    assert logits.flatten().tolist() == list(range(10))
    assert split_logits(logits, rows[1:])[0] is logits, "there is nothing to keep"


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 36, 37])
def test_prompt_tokens_are_scored_in_any_chunks(engine: Engine, tiny: Path, chunk: int) -> None:
    dense = dense_logprobs(tiny, PROMPT)
    sampling = replace(GREEDY, num_prompt_logprobs=3, num_logprobs=5)
    results = run(engine, sampling, chunk)
    scored = {
        part.first_position + index: score
        for result in results
        for part in result.known_logprobs
        for index, score in enumerate(part.tokens)
    }
    assert sorted(scored) == list(range(1, len(PROMPT)))
    for position, score in scored.items():
        check(score, dense[position - 1], PROMPT[position], 3)
    (drawn,) = results[-1].sampled
    assert drawn.logprobs is not None
    check(drawn.logprobs, dense[-1], drawn.token_id, 5)
    assert drawn.logprobs.rank == 1
    assert all(not result.sampled for result in results[:-1])


def test_only_those_who_ask_are_told_and_the_numbers_do_not_depend_on_the_batch(engine: Engine) -> None:
    asking = Sampling(temperature=2.0, top_k=50, seed=7, num_logprobs=0, num_prompt_logprobs=2)
    samplings = [GREEDY, asking, replace(asking, num_logprobs=MAX_LOGPROBS, num_prompt_logprobs=None), GREEDY]
    together = Session(engine).step(
        new_sequences=tuple(new(engine, key, each, len(PROMPT), 4 * key) for key, each in enumerate(samplings))
    )
    assert [token.logprobs is None for token in together.sampled] == [True, False, False, True]
    assert [part.sequence_id for part in together.known_logprobs] == [1]
    for key, sampling in enumerate(samplings):
        alone = Session(engine).step(new_sequences=(new(engine, key, sampling, len(PROMPT)),))
        assert alone.sampled == together.sampled[key : key + 1]
        if key == 1:
            assert alone.known_logprobs == together.known_logprobs
    few, many = (token.logprobs for token in together.sampled[1:3])
    assert few is not None
    assert many is not None
    assert (few.logprob, few.rank, few.top_ids) == (many.logprob, many.rank, ())
    assert len(many.top_ids) == len(many.top_logprobs) == MAX_LOGPROBS


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"num_logprobs": MAX_LOGPROBS + 1}, "more than 32 logprobs"),
        ({"num_prompt_logprobs": MAX_LOGPROBS + 1}, "more than 32 logprobs"),
        ({"logit_bias": ((10**6, 1.0),)}, "outside the model's vocabulary"),
        ({"bad_words": ((3, 10**6),)}, "outside the model's vocabulary"),
        ({"bad_words": ((),)}, "empty bad word"),
        ({"repetition_penalty": 0.0}, "not positive"),
    ],
)
def test_a_sampling_that_cannot_be_is_refused(engine: Engine, fields: dict[str, Any], problem: str) -> None:
    session = Session(engine)
    with pytest.raises(InvalidPlan, match=problem):
        session.step(new_sequences=(new(engine, 1, replace(GREEDY, **fields), len(PROMPT)),))
