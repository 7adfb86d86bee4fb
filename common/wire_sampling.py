"""How tokens are drawn and what they scored, as protobuf messages, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from citybus.executor.v1 import executor_pb2 as pb
from common.logprobs import KnownLogprobs, TokenLogprobs
from common.step import InvalidPlan, SampledToken, Sampling
from common.wire_grammar import grammar_from_pb, grammar_to_pb


def sampling_to_pb(sampling: Sampling) -> pb.Sampling:
    """The message for a sampling."""
    off = sampling.repetition_penalty == 1.0
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        repetition_penalty=None if off else sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        allowed_token_ids=sampling.allowed_token_ids,
        banned_token_ids=sampling.banned_token_ids,
        min_tokens=sampling.min_tokens,
        end_token_ids=sampling.end_token_ids,
        bad_words=[pb.TokenSequence(ids=word) for word in sampling.bad_words],
        num_logprobs=sampling.num_logprobs,
        num_prompt_logprobs=sampling.num_prompt_logprobs,
        grammar=grammar_to_pb(sampling.grammar) if sampling.grammar else None,
    )


def sampling_from_pb(message: pb.Sampling) -> Sampling:
    """The sampling in a message."""
    return Sampling(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        allowed_token_ids=tuple(message.allowed_token_ids),
        banned_token_ids=tuple(message.banned_token_ids),
        min_tokens=message.min_tokens,
        end_token_ids=tuple(message.end_token_ids),
        bad_words=tuple(tuple(word.ids) for word in message.bad_words),
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        num_prompt_logprobs=message.num_prompt_logprobs if message.HasField("num_prompt_logprobs") else None,
        grammar=grammar_from_pb(message.grammar) if message.HasField("grammar") else None,
    )


def add_logprobs(message: pb.StepResult, sampled: Sequence[SampledToken], prompts: Iterable[KnownLogprobs]) -> None:
    """Add the columns of log-probabilities to a result, where somebody asked."""
    scores = [token.logprobs for token in sampled if token.logprobs is not None]
    if scores:
        message.num_logprobs.extend(_width(token.logprobs) for token in sampled)
        message.logprobs.extend(_values(scores))
        message.ranks.extend(score.rank for score in scores)
        message.top_ids.extend(token_id for score in scores for token_id in score.top_ids)
    message.known_logprobs.extend(
        pb.KnownLogprobs(
            id=part.sequence_id,
            first_position=part.first_position,
            width=_width(part.tokens[0]) if part.tokens else 0,
            logprobs=_values(part.tokens),
            ranks=[score.rank for score in part.tokens],
            top_ids=[token_id for score in part.tokens for token_id in score.top_ids],
        )
        for part in prompts
    )


def sampled_from_pb(message: pb.StepResult) -> tuple[SampledToken, ...]:
    """The tokens of a result. Raises `InvalidPlan` where its columns do not fit each other."""
    if len(message.ids) != len(message.token_ids):
        raise InvalidPlan(f"a result has {len(message.ids)} sequences and {len(message.token_ids)} tokens")
    if not message.num_logprobs:
        return tuple(map(SampledToken, message.ids, message.token_ids))
    if len(message.num_logprobs) != len(message.ids):
        raise InvalidPlan(f"num_logprobs has {len(message.num_logprobs)} values for {len(message.ids)} rows")
    scores = _scores(message, message.num_logprobs)
    return tuple(map(SampledToken, message.ids, message.token_ids, scores))


def known_from_pb(message: pb.StepResult) -> tuple[KnownLogprobs, ...]:
    """Log-probabilities of prompts in a result. Raises `InvalidPlan` where its columns do not fit each other."""
    parts = []
    for part in message.known_logprobs:
        scores = _scores(part, [part.width] * len(part.ranks))
        parts.append(KnownLogprobs(part.id, part.first_position, tuple(score for score in scores if score is not None)))
    return tuple(parts)


def _width(score: TokenLogprobs | None) -> int:
    return 0 if score is None else 1 + len(score.top_ids)


def _values(scores: Iterable[TokenLogprobs]) -> Iterator[float]:
    for score in scores:
        yield score.logprob
        yield from score.top_logprobs


def _scores(columns: pb.StepResult | pb.KnownLogprobs, widths: Sequence[int]) -> list[TokenLogprobs | None]:
    """One entry for each of `widths`, None where it is 0."""
    scored = [width for width in widths if width]
    if (len(columns.logprobs), len(columns.ranks), len(columns.top_ids)) != (
        sum(scored),
        len(scored),
        sum(scored) - len(scored),
    ):
        raise InvalidPlan("logprobs, ranks and top_ids do not fit each other")
    values, ranks, ids = iter(columns.logprobs), iter(columns.ranks), iter(columns.top_ids)
    return [
        TokenLogprobs(next(values), next(ranks), tuple(islice(ids, width - 1)), tuple(islice(values, width - 1)))
        if width
        else None
        for width in widths
    ]
