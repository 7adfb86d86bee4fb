"""What both clients send and give back: request options, and the parts of an answer as plain dataclasses."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from citybus.v1 import generation_pb2 as pb


class ChatMessage(TypedDict):
    """One turn of a conversation: `role` is one the model's template knows ("system", "user", "assistant")."""

    role: str
    content: str


class RequestOptions(TypedDict, total=False):
    """Options of a request. Whatever is left out, the server decides."""

    messages: Sequence[ChatMessage]
    """A conversation, oldest turn first, rendered with the model's chat template; instead of a text."""
    token_ids: Sequence[int]
    """Token ids, used exactly as given; instead of a text."""
    request_id: str
    """Name of the request, 1 to 128 printable ASCII characters without spaces. Default: one the server makes."""
    model: str
    """Name of the model. Default: the served one."""
    temperature: float
    """Divides the logits; 0 is greedy, at most 100. Default: 1."""
    top_p: float
    """Keep the smallest set of most likely tokens whose probability reaches this; over 0, at most 1. Default: 1."""
    top_k: int
    """Keep this many most likely tokens. Default: 0 (off)."""
    min_p: float
    """Drop tokens less likely than this share of the likeliest; 0 to 1. Default: 0 (off)."""
    seed: int
    """The same seed, prompt and parameters give the same tokens. Default: a fresh one."""
    max_tokens: int
    """Most tokens to generate, 1 or more. Default: up to the model's context."""
    stop: Sequence[str]
    """Texts that end the answer and are not part of it; at most 16."""
    stop_token_ids: Sequence[int]
    """Token ids that end the answer and give no text; at most 64."""
    ignore_eos: bool
    """Go on past the model's own end tokens. Default: False."""
    priority: int
    """Higher is served sooner under the "priority" policy; -1000 to 1000. Default: 0."""
    tenant: str
    """Who is billed under fair-share policies. Default: ""."""
    time_limit_ms: int
    """Most milliseconds from arrival to the last token, queueing included. Default: the server's limit."""
    cache_salt: str
    """Share cached prefixes only with requests of the same salt. Default: a common space."""
    skip_special_tokens: bool
    """Leave special tokens out of the text. Default: True."""
    n: int
    """Number of samples, each with a seed of its own that follows from `seed`; 1 to 64. Default: 1."""


class FinishReason(enum.StrEnum):
    """Why an answer ended."""

    STOP = "stop"
    """An end token or a stop text."""
    LENGTH = "length"
    """`max_tokens`, the model's context or the memory for it is used up."""
    DEADLINE = "deadline"
    """The time limit passed."""
    CANCELLED = "cancelled"
    """Cancelled by the server's operator."""


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
    """How an answer ended; the token or the text that stopped it is set where `reason` is STOP."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    stop_token_id: int | None = None
    stop_text: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """The next part of an answer: its tokens number `first_index`, `first_index` + 1 and so on, and new text.

    `sample` is the number of the answer, where several were asked for.
    """

    first_index: int
    token_ids: tuple[int, ...]
    text: str
    sample: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `request_id` is the id the server knew it by."""

    text: str
    token_ids: tuple[int, ...]
    finish: Finish
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Model:
    """A served model; `max_model_len` is the most tokens of prompt and answer together."""

    name: str
    max_model_len: int
    vocab_size: int
    has_chat_template: bool


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")
_STOPPING = ("max_tokens", "stop", "stop_token_ids", "ignore_eos")
_SAMPLES = ("n",)
_PROMPTS = ("messages", "token_ids")


def to_generate_request(prompt: str | None, options: RequestOptions) -> pb.GenerateRequest:
    """The message for a request. Raises `ValueError` or `TypeError` for what no such message can hold."""
    _check_prompt(prompt, options)
    request = pb.GenerateRequest()
    for name, value in ({"prompt": prompt, **options} if prompt is not None else options).items():
        try:
            _set(request, name, value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
    return request


def to_count_request(prompt: str | None, turns: Sequence[ChatMessage] | None, model: str) -> pb.CountTokensRequest:
    """The message that asks for the length of a text or a conversation. Raises like `to_generate_request`."""
    options: RequestOptions = {"model": model} if turns is None else {"model": model, "messages": turns}
    request = to_generate_request(prompt, options)
    if request.HasField("chat"):
        return pb.CountTokensRequest(model=model, chat=request.chat)
    return pb.CountTokensRequest(model=model, text=request.text)


def _check_prompt(prompt: str | None, options: RequestOptions) -> None:
    given = (prompt is not None) + sum(name in options for name in _PROMPTS)
    if given != 1:
        raise ValueError("give exactly one prompt: a text, messages=[...] or token_ids=[...]")


def _set(request: pb.GenerateRequest, name: str, value: object) -> None:
    """Set one option; protobuf itself raises for a wrong type or range."""
    if name == "stop" and isinstance(value, str):
        raise TypeError("expected a list of texts, got a text")
    if name == "prompt":
        request.text = value  # type: ignore[assignment]
    elif name == "messages":
        request.chat.CopyFrom(pb.ChatPrompt(messages=[pb.ChatMessage(**turn) for turn in value]))  # type: ignore[attr-defined]
    elif name == "token_ids":
        request.tokens.CopyFrom(pb.TokenPrompt(ids=value))  # type: ignore[arg-type]
    elif name in _SAMPLING:
        request.sampling.MergeFrom(pb.SamplingParams(**{name: value}))  # type: ignore[arg-type]
    elif name in _STOPPING:
        request.stopping.MergeFrom(pb.StopParams(**{name: value}))  # type: ignore[arg-type]
    elif name in _SAMPLES:
        request.samples.MergeFrom(pb.SampleParams(**{name: value}))  # type: ignore[arg-type]
    elif name in RequestOptions.__annotations__:
        setattr(request, name, value)
    else:
        raise TypeError("no such option")


def delta_of(message: pb.GenerateResponse) -> Delta | None:
    """The part of an answer in a message; None in one that only says how the answer ended."""
    if not message.token_ids and not message.text:
        return None
    return Delta(message.first_index, tuple(message.token_ids), message.text, message.sample)


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
    )


def completion_of(deltas: Sequence[Delta], end: Finish, request_id: str | None) -> Completion:
    """The whole answer of which `deltas` are the parts."""
    text = "".join(part.text for part in deltas)
    token_ids = tuple(token for part in deltas for token in part.token_ids)
    return Completion(text, token_ids, end, request_id)


def completions_of(deltas: Sequence[Delta], ends: Sequence[Finish], request_id: str | None) -> list[Completion]:
    """Every sample of an answer, of which `deltas` are the parts."""
    return [
        completion_of([part for part in deltas if part.sample == index], end, request_id)
        for index, end in enumerate(ends)
    ]


def check_one_sample(options: RequestOptions) -> None:
    """Raises `ValueError` where several answers are asked for."""
    if options.get("n", 1) > 1:
        raise ValueError("n: complete() gives one answer; ask samples() for several")


def models_of(message: pb.ListModelsResponse) -> list[Model]:
    """The served models."""
    return [Model(each.name, each.max_model_len, each.vocab_size, each.has_chat_template) for each in message.models]
