"""Makes a `Sampling` of what a client asked for, or says which field is wrong."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Collection, Iterable, Mapping

from citybus.v1 import generation_pb2 as pb
from common.errors import InvalidRequest
from common.step import Sampling

MAX_TEMPERATURE = 100.0
MAX_REPETITION_PENALTY = 100.0
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MAX_BIASES = 1024
MAX_TOKEN_LIST = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_CHARS = 128
MAX_LOGPROBS = 20
MAX_PROMPT_LOGPROBS = 100_000
"""Numbers that one request may have of its prompt: they come in one message."""


def sampling_of(params: pb.SamplingParams, stopping: pb.StopParams, output: pb.OutputParams, vocab: int) -> Sampling:
    """The sampling, but for what takes a tokenizer. Raises `InvalidRequest`. `vocab` is the vocabulary's size."""
    if params.top_k < -1:
        raise InvalidRequest("sampling.top_k must be 1 or more, or 0 or -1 for off")
    _check_range("sampling.presence_penalty", params.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_range("sampling.frequency_penalty", params.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    return Sampling(
        temperature=_temperature(params),
        top_p=_top_p(params),
        top_k=params.top_k if 0 < params.top_k < vocab else 0,
        min_p=_check_range("sampling.min_p", params.min_p, 0.0, 1.0),
        seed=params.seed if params.HasField("seed") else secrets.randbits(64),
        repetition_penalty=_repetition_penalty(params),
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=_logit_bias(params.logit_bias, vocab),
        allowed_token_ids=token_ids("sampling.allowed_token_ids", params.allowed_token_ids, MAX_TOKEN_LIST, vocab),
        banned_token_ids=token_ids("sampling.banned_token_ids", params.banned_token_ids, MAX_TOKEN_LIST, vocab),
        min_tokens=_min_tokens(stopping),
        num_logprobs=_num_logprobs("output.logprobs", output.logprobs if output.HasField("logprobs") else None),
        num_prompt_logprobs=_num_logprobs(
            "output.prompt_logprobs", output.prompt_logprobs if output.HasField("prompt_logprobs") else None
        ),
    )


def bad_words_of(params: pb.SamplingParams) -> tuple[str, ...]:
    """The texts that are not to come. Raises `InvalidRequest`."""
    check_count("sampling.bad_words", params.bad_words, MAX_BAD_WORDS, least=0)
    if not all(1 <= len(word) <= MAX_BAD_WORD_CHARS for word in params.bad_words):
        raise InvalidRequest(f"sampling.bad_words: each text must have 1 to {MAX_BAD_WORD_CHARS} characters")
    return tuple(params.bad_words)


def with_bans(
    sampling: Sampling, end_token_ids: Collection[int], bad_words: Iterable[tuple[int, ...]], vocab: int
) -> Sampling:
    """`sampling` with bad words in tokens; the tokens that end the answer are banned until it is long enough.

    Raises `InvalidRequest` where there could be nothing left to draw.
    """
    words = tuple(word for word in bad_words if max(word) < vocab)
    ends = tuple(sorted(end_token_ids)) if sampling.min_tokens else ()
    bans = {*sampling.banned_token_ids, *ends, *(word[-1] for word in words)}
    left = set(sampling.allowed_token_ids) - bans if sampling.allowed_token_ids else vocab - len(bans)
    if not left:
        raise InvalidRequest(
            "sampling.allowed_token_ids: none is left of them without banned_token_ids, the last tokens of bad_words"
            " and, while there are fewer than min_tokens, end tokens; allow another one"
        )
    return dataclasses.replace(sampling, bad_words=words, end_token_ids=ends)


def check_prompt_logprobs(num_tokens: int, sampling: Sampling) -> None:
    """Raise `InvalidRequest` where the log-probabilities of so many prompt tokens are too many."""
    if sampling.num_prompt_logprobs is not None and num_tokens * (sampling.num_prompt_logprobs + 1) > (
        MAX_PROMPT_LOGPROBS
    ):
        raise InvalidRequest(
            f"output.prompt_logprobs: {num_tokens} prompt tokens have {sampling.num_prompt_logprobs + 1} numbers each,"
            f" more than {MAX_PROMPT_LOGPROBS} in all: ask for fewer, or shorten the prompt"
        )


def token_ids(field: str, ids: Collection[int], most: int, vocab: int) -> tuple[int, ...]:
    """Distinct ids in rising order. Raises `InvalidRequest` where there are too many, or one is no token."""
    check_count(field, ids, most, least=0)
    if ids and max(ids) >= vocab:
        raise InvalidRequest(f"{field}: {max(ids)} is over {vocab - 1}, the model's largest")
    return tuple(sorted(set(ids)))


def check_count(field: str, items: Collection[object], most: int, *, least: int = 1) -> None:
    """Raise `InvalidRequest` where there are too many or too few."""
    if not least <= len(items) <= most:
        raise InvalidRequest(f"{field}: there must be {least} to {most}, not {len(items)}")


def _temperature(params: pb.SamplingParams) -> float:
    temperature = params.temperature if params.HasField("temperature") else 1.0
    return _check_range("sampling.temperature", temperature, 0.0, MAX_TEMPERATURE)


def _top_p(params: pb.SamplingParams) -> float:
    top_p = params.top_p if params.HasField("top_p") else 1.0
    if not 0.0 < top_p <= 1.0:
        raise InvalidRequest("sampling.top_p must be over 0 and at most 1")
    return top_p


def _repetition_penalty(params: pb.SamplingParams) -> float:
    penalty = params.repetition_penalty if params.HasField("repetition_penalty") else 1.0
    if not 0.0 < penalty <= MAX_REPETITION_PENALTY:
        raise InvalidRequest(f"sampling.repetition_penalty must be over 0 and at most {MAX_REPETITION_PENALTY:g}")
    return penalty


def _logit_bias(biases: Mapping[int, float], vocab: int) -> tuple[tuple[int, float], ...]:
    token_ids("sampling.logit_bias", biases.keys(), MAX_BIASES, vocab)
    for bias in biases.values():
        _check_range("sampling.logit_bias: each", bias, -MAX_BIAS, MAX_BIAS)
    return tuple(sorted(biases.items()))


def _min_tokens(stopping: pb.StopParams) -> int:
    if stopping.HasField("max_tokens") and stopping.min_tokens > stopping.max_tokens:
        raise InvalidRequest(f"stopping.min_tokens must be at most max_tokens, which is {stopping.max_tokens}")
    return stopping.min_tokens


def _num_logprobs(field: str, count: int | None) -> int | None:
    if count is not None and count > MAX_LOGPROBS:
        raise InvalidRequest(f"{field} must be at most {MAX_LOGPROBS}")
    return count


def _check_range(field: str, value: float, least: float, most: float) -> float:
    """The value. NaN is outside of every range."""
    if not least <= value <= most:
        raise InvalidRequest(f"{field} must be from {least:g} to {most:g}")
    return value
