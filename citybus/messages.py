"""What both clients give back: the parts of an answer as plain dataclasses."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from citybus.v1 import generation_pb2 as pb


class FinishReason(enum.StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """An end token or a stop text."""
    LENGTH = "length"
    """`max_tokens`, the model's context or the memory for it is used up."""
    DEADLINE = "deadline"
    """The time limit passed."""
    CANCELLED = "cancelled"
    """Cancelled: by a call of `Cancel`, whoever made it, or for want of a reader once its grace was over."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one sample; `cached_tokens` are prompt tokens found in the prefix cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of one request on the server's clock, in milliseconds from its arrival.

    Until it was first part of a step, until its first token was known (0 where there was none), until it ended.
    """

    queued_ms: float
    first_token_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class Finish:
    """How an answer ended; the token or the text that stopped it is set where `reason` is STOP.

    `score` is what `best_of` or beam search ranked it by.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    stop_token_id: int | None = None
    stop_text: str | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model finds a token, by its own logits: before penalties, bias, bans and temperature.

    `rank` 1 is the likeliest; `top_ids` are the likeliest in falling order, `top_logprobs` theirs. `logprob` is None,
    and the rest empty, where it is not known: of a prompt's first token, and of an answer that is read again late.
    """

    logprob: float | None
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt as the model saw it; `text` where `echo` was asked for, `logprobs` where `prompt_logprobs` was."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """The next part of an answer: its tokens number `first_index`, `first_index` + 1 and so on, and new text.

    `logprobs` are parallel to `token_ids`, where asked for; `prompt`, where asked for, comes with the first part.
    `sample` is the number of the answer, where several were asked for.
    """

    first_index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt: Prompt | None = None
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `request_id` is the id the server knew it by; the rest as in `Delta`."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    request_id: str | None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; `max_model_len` is the most tokens of prompt and answer together."""

    name: str
    max_model_len: int
    vocab_size: int
    has_chat_template: bool


def delta_of(message: pb.GenerateResponse) -> Delta | None:
    """The part of an answer in a message; None in one that only says how the answer ended."""
    prompt = _prompt_of(message.prompt) if message.HasField("prompt") else None
    if not message.token_ids and not message.text and prompt is None:
        return None
    logprobs = tuple(map(_logprobs_of, message.logprobs))
    return Delta(message.first_index, tuple(message.token_ids), message.text, logprobs, prompt, message.sample)


def _prompt_of(prompt: pb.Prompt) -> Prompt:
    return Prompt(tuple(prompt.token_ids), prompt.text, tuple(map(_logprobs_of, prompt.logprobs)))


def _logprobs_of(score: pb.TokenLogprobs) -> TokenLogprobs:
    logprob = score.logprob if score.HasField("logprob") else None
    return TokenLogprobs(logprob, score.rank, tuple(score.top_ids), tuple(score.top_logprobs))


def finish_of(message: pb.GenerateResponse) -> Finish | None:
    """How the answer ended, where this message says so."""
    if not message.HasField("finish"):
        return None
    end = message.finish
    reason = pb.FinishReason.Name(end.reason).removeprefix("FINISH_REASON_").lower()
    stopped_by = end.WhichOneof("stopped_by")
    return Finish(
        FinishReason(reason),
        Usage(end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.cached_tokens),
        Timings(end.timings.queued_ms, end.timings.first_token_ms, end.timings.total_ms),
        end.stop_token_id if stopped_by == "stop_token_id" else None,
        end.stop_text if stopped_by == "stop_text" else None,
        end.score if end.HasField("score") else None,
    )


def completion_of(deltas: Sequence[Delta], end: Finish, request_id: str | None) -> Completion:
    """The whole answer of which `deltas` are the parts."""
    text = "".join(part.text for part in deltas)
    token_ids = tuple(token for part in deltas for token in part.token_ids)
    logprobs = tuple(each for part in deltas for each in part.logprobs)
    return Completion(text, token_ids, end, request_id, logprobs, deltas[0].prompt if deltas else None)


def completions_of(deltas: Sequence[Delta], ends: Sequence[Finish], request_id: str | None) -> list[Completion]:
    """Every sample of an answer, of which `deltas` are the parts."""
    return [
        completion_of([part for part in deltas if part.sample == index], end, request_id)
        for index, end in enumerate(ends)
    ]


def models_of(message: pb.ListModelsResponse) -> list[Model]:
    """The served models."""
    return [Model(each.name, each.max_model_len, each.vocab_size, each.has_chat_template) for each in message.models]
