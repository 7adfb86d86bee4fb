"""Makes a valid request of what a client sent, or says which field is wrong.

Every limit of `protos/citybus/v1/generation.proto` is checked here, before anything is encoded. Whatever a caller
wrote is told back only where it is a number.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass

from citybus.v1 import generation_pb2 as pb
from common.errors import InvalidRequest, NotFound
from common.step import ExecutorInfo, Sampling
from scheduler_svc.answer_params import AnswerParams, answer_params_of
from scheduler_svc.forms import Form, form_of
from scheduler_svc.prompts import ChatPrompt, Message, Prompt, TextPrompt, TokenPrompt, check_room
from scheduler_svc.sampling_limits import bad_words_of, check_count, sampling_of, token_ids
from scheduler_svc.unknown_fields import refuse_unknown_fields

MAX_MESSAGES = 4096
MAX_STOP_TEXTS = 16
MAX_STOP_TEXT_CHARS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_PRIORITY = 1000
MAX_SALT_BYTES = 128
MAX_GRACE_MS = 3_600_000

_REQUEST_ID = re.compile(r"[!-~]{1,128}")
_TENANT = re.compile(r"[ -~]{0,128}")
_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """A valid request, its prompt not yet encoded. Every default is resolved; `time_limit_s` None: no limit of its own.

    `stop_token_ids` are the caller's own; the model's end tokens come on top unless `ignore_eos`. What takes a
    tokenizer is not yet in `sampling`, nor is `form`, which is not tried yet.
    """

    request_id: str
    prompt: Prompt
    sampling: Sampling
    form: Form | None
    bad_words: tuple[str, ...]
    stop_texts: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    include_stop: bool
    echo: bool
    max_tokens: int | None
    priority: int
    tenant: str
    time_limit_s: float | None
    cache_salt: str | None
    skip_special_tokens: bool
    grace_s: float
    answers: AnswerParams


def validate_generate(request: pb.GenerateRequest, model: ExecutorInfo) -> GenerateCall:
    """The request, valid for `model`. Raises `InvalidRequest` or `NotFound`."""
    check_model(request.model, model)
    stopping = request.stopping
    max_tokens = _at_least_one("stopping.max_tokens", stopping.max_tokens if stopping.HasField("max_tokens") else None)
    check_room(len(request.tokens.ids), model.max_model_len)  # before they are copied
    return GenerateCall(
        request_id=_request_id(request),
        prompt=validate_prompt(request),
        sampling=sampling_of(request.sampling, stopping, request.output, model.vocab_size),
        form=form_of(request),
        bad_words=bad_words_of(request.sampling),
        stop_texts=_stop_texts(stopping.stop),
        stop_token_ids=frozenset(
            token_ids("stopping.stop_token_ids", stopping.stop_token_ids, MAX_STOP_TOKEN_IDS, model.vocab_size)
        ),
        ignore_eos=stopping.ignore_eos,
        include_stop=stopping.include_stop,
        echo=request.output.echo,
        max_tokens=max_tokens,
        priority=_priority(request.priority),
        tenant=check_tenant(request.tenant),
        time_limit_s=_time_limit_s(request),
        cache_salt=_cache_salt(request),
        skip_special_tokens=request.skip_special_tokens if request.HasField("skip_special_tokens") else True,
        grace_s=_grace_s(request),
        answers=answer_params_of(request, model),
    )


def check_model(name: str, model: ExecutorInfo) -> None:
    """Raise `NotFound` unless `name` is the model served, or empty."""
    if name not in ("", model.model):
        raise NotFound(f'model: not served here; this server answers for "{model.model}"')


def validate_prompt(request: pb.GenerateRequest | pb.CountTokensRequest) -> Prompt:
    """The prompt of a request, which holds nothing that this server does not know. Raises `InvalidRequest`."""
    if request.HasField("chat"):  # first: a message takes two bytes on the wire and a hundred here
        check_count("chat.messages", request.chat.messages, MAX_MESSAGES)
    refuse_unknown_fields(request)
    match request.WhichOneof("prompt"):
        case "text":
            return TextPrompt(request.text)
        case "chat":
            return _chat(request.chat)
        case "tokens":
            assert isinstance(request, pb.GenerateRequest)
            return TokenPrompt(tuple(request.tokens.ids))
    raise InvalidRequest("prompt is missing: set text, chat or tokens")


def _chat(chat: pb.ChatPrompt) -> ChatPrompt:
    messages = tuple(Message(message.role, message.content) for message in chat.messages)
    for index, message in enumerate(messages):
        if not _ROLE.fullmatch(message.role):
            raise InvalidRequest(f"chat.messages[{index}].role must be 1 to 64 letters, digits, _ or -")
    if not any(message.content for message in messages):
        raise InvalidRequest("chat.messages: the prompt is empty; at least one message must have content")
    return ChatPrompt(messages)


def _request_id(request: pb.GenerateRequest) -> str:
    if not request.HasField("request_id"):
        return uuid.uuid4().hex
    if not _REQUEST_ID.fullmatch(request.request_id):
        raise InvalidRequest("request_id must be 1 to 128 printable ASCII characters without spaces")
    return request.request_id


def _stop_texts(stops: Collection[str]) -> tuple[str, ...]:
    check_count("stopping.stop", stops, MAX_STOP_TEXTS, least=0)
    if not all(1 <= len(stop) <= MAX_STOP_TEXT_CHARS for stop in stops):
        raise InvalidRequest(f"stopping.stop: each text must have 1 to {MAX_STOP_TEXT_CHARS} characters")
    return tuple(stops)


def _priority(priority: int) -> int:
    if abs(priority) > MAX_PRIORITY:
        raise InvalidRequest(f"priority must be from -{MAX_PRIORITY} to {MAX_PRIORITY}")
    return priority


def check_tenant(tenant: str) -> str:
    """The name, if it can be one of a tenant. Raises `InvalidRequest`."""
    if not _TENANT.fullmatch(tenant):
        raise InvalidRequest("tenant must be at most 128 printable ASCII characters")
    return tenant


def _time_limit_s(request: pb.GenerateRequest) -> float | None:
    limit_ms = _at_least_one("time_limit_ms", request.time_limit_ms if request.HasField("time_limit_ms") else None)
    return None if limit_ms is None else limit_ms / 1000


def _grace_s(request: pb.GenerateRequest) -> float:
    if request.reconnect_grace_ms > MAX_GRACE_MS:
        raise InvalidRequest(f"reconnect_grace_ms must be at most {MAX_GRACE_MS}")
    return request.reconnect_grace_ms / 1000


def _cache_salt(request: pb.GenerateRequest) -> str | None:
    if not request.HasField("cache_salt"):
        return None
    if len(request.cache_salt.encode()) > MAX_SALT_BYTES:
        raise InvalidRequest(f"cache_salt must be at most {MAX_SALT_BYTES} bytes")
    return request.cache_salt


def _at_least_one(field: str, value: int | None) -> int | None:
    if value == 0:
        raise InvalidRequest(f"{field} must be 1 or more")
    return value
