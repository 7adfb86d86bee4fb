"""The limits of what may be asked of a sampling, and what is left to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from citybus.v1 import generation_pb2 as pb
from common.errors import InvalidRequest
from common.step import Sampling
from scheduler_svc.sampling_limits import bad_words_of, check_prompt_logprobs, sampling_of, with_bans

VOCAB = 1000


def sampling(params: dict[str, Any], stopping: dict[str, Any] | None = None, **output: int) -> Sampling:
    return sampling_of(
        pb.SamplingParams(seed=7, **params), pb.StopParams(**(stopping or {})), pb.OutputParams(**output), VOCAB
    )


def refusal(params: dict[str, Any], stopping: dict[str, Any] | None = None, **output: int) -> str:
    with pytest.raises(InvalidRequest) as caught:
        sampling(params, stopping, **output)
    return str(caught.value)


def test_edges_are_accepted() -> None:
    assert sampling({"repetition_penalty": 100.0}).repetition_penalty == 100.0
    assert 0 < sampling({"repetition_penalty": 0.001}).repetition_penalty < 0.0011
    assert sampling({"presence_penalty": -2.0}).presence_penalty == -2.0
    assert sampling({"frequency_penalty": 2.0}).frequency_penalty == 2.0
    assert sampling({"logit_bias": {999: 100.0, 3: -100.0}}).logit_bias == ((3, -100.0), (999, 100.0))
    assert len(sampling({"logit_bias": dict.fromkeys(range(1000), 1.0)}).logit_bias) == 1000
    assert sampling({}, {"min_tokens": 2**32 - 1}).min_tokens == 2**32 - 1
    assert sampling({}, logprobs=20, prompt_logprobs=0).num_logprobs == 20
    assert len(bad_words_of(pb.SamplingParams(bad_words=["x" * 128] * 64))) == 64


@pytest.mark.parametrize("value", [0.0, -1.0, 100.5, math.nan, math.inf])
def test_repetition_penalty_outside(value: float) -> None:
    expected = "sampling.repetition_penalty must be over 0 and at most 100"
    assert refusal({"repetition_penalty": value}) == expected


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [-2.01, 2.01, math.nan, math.inf, -math.inf])
def test_other_penalties_outside(name: str, value: float) -> None:
    assert refusal({name: value}) == f"sampling.{name} must be from -2 to 2"


@pytest.mark.parametrize("value", [-101.0, 101.0, math.nan, math.inf, -math.inf])
def test_F09_bias_outside(value: float) -> None:
    assert refusal({"logit_bias": {3: value}}) == "sampling.logit_bias: each must be from -100 to 100"


@pytest.mark.parametrize("outside", [VOCAB, VOCAB + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "banned_token_ids"])
def test_F09_ids_outside_the_vocabulary(name: str, outside: int) -> None:
    given = {outside: 1.0} if name == "logit_bias" else [1, outside]
    assert refusal({name: given}) == f"sampling.{name}: {outside} is over 999, the model's largest"


@pytest.mark.parametrize("name", ["allowed_token_ids", "banned_token_ids"])
def test_lists_that_are_too_long(name: str) -> None:
    assert refusal({name: [1] * 1025}) == f"sampling.{name}: there must be 0 to 1024, not 1025"


def test_too_many_biases() -> None:
    expected = "sampling.logit_bias: there must be 0 to 1024, not 1025"
    assert refusal({"logit_bias": dict.fromkeys(range(1025), 1.0)}) == expected


@pytest.mark.parametrize("words", [[""], ["x", ""], ["x" * 129]])
def test_bad_words_of_a_wrong_length(words: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=r"^sampling\.bad_words: each text must have 1 to 128 characters$"):
        bad_words_of(pb.SamplingParams(bad_words=words))


def test_too_many_bad_words() -> None:
    with pytest.raises(InvalidRequest, match=r"^sampling\.bad_words: there must be 0 to 64, not 65$"):
        bad_words_of(pb.SamplingParams(bad_words=["x"] * 65))


def test_min_tokens_over_max_tokens() -> None:
    assert (
        refusal({}, {"min_tokens": 4, "max_tokens": 3}) == "stopping.min_tokens must be at most max_tokens, which is 3"
    )


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_F12_too_many_logprobs(name: str) -> None:
    assert refusal({}, **{name: 21}) == f"output.{name} must be at most 20"


def test_logprobs_of_a_long_prompt() -> None:
    asking = Sampling(num_prompt_logprobs=4)
    check_prompt_logprobs(20_000, asking)
    check_prompt_logprobs(10**6, Sampling(num_logprobs=20))
    with pytest.raises(InvalidRequest, match="20001 prompt tokens have 5 numbers each, more than 100000 in all"):
        check_prompt_logprobs(20_001, asking)


@pytest.mark.parametrize(
    ("asked", "ends", "words"),
    [
        (Sampling(allowed_token_ids=(1, 2), banned_token_ids=(1, 2, 3)), (), ()),
        (Sampling(allowed_token_ids=(1, 2), banned_token_ids=(1,), min_tokens=1), (2,), ()),
        (Sampling(allowed_token_ids=(1, 2), banned_token_ids=(1,)), (), ((7, 2),)),
        (Sampling(banned_token_ids=tuple(range(VOCAB))), (), ()),
        (Sampling(banned_token_ids=tuple(range(1, VOCAB))), (), ((0,),)),
    ],
)
def test_something_must_be_left_to_draw(asked: Sampling, ends: Sequence[int], words: Sequence[tuple[int, ...]]) -> None:
    with pytest.raises(InvalidRequest, match="allow another one"):
        with_bans(asked, ends, words, VOCAB)


def test_bans_in_tokens() -> None:
    asked = Sampling(allowed_token_ids=(1, 2), banned_token_ids=(1,), min_tokens=1)
    completed = with_bans(asked, {9, 4}, [(5,), (1, VOCAB), (3, 7)], VOCAB)
    assert completed.end_token_ids == (4, 9)
    assert completed.bad_words == ((5,), (3, 7))
    assert with_bans(Sampling(), {9}, [], VOCAB) == Sampling()
