"""What both clients send: request options, and the messages that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from google.protobuf.message import Message

from citybus.forms import FORMS, set_form
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
    repetition_penalty: float
    """Makes tokens of the prompt and the answer less likely (over 1) or more; over 0, at most 100. Default: 1 (off)."""
    presence_penalty: float
    """Taken from the logits of tokens that the answer has; -2 to 2. Default: 0."""
    frequency_penalty: float
    """Taken from the logits of tokens for each time that the answer has them; -2 to 2. Default: 0."""
    logit_bias: Mapping[int, float]
    """Token id -> what is added to its logit, -100 to 100; at most 1024. Default: none."""
    allowed_token_ids: Sequence[int]
    """The only tokens that may be drawn; at most 1024. Default: all."""
    banned_token_ids: Sequence[int]
    """Tokens that are never drawn; at most 1024."""
    bad_words: Sequence[str]
    """Texts whose usual tokens never come in the answer; at most 64."""
    max_tokens: int
    """Most tokens to generate, 1 or more. Default: up to the model's context."""
    stop: Sequence[str]
    """Texts that end the answer and are not part of it; at most 16."""
    stop_token_ids: Sequence[int]
    """Token ids that end the answer and give no text; at most 64."""
    ignore_eos: bool
    """Go on past the model's own end tokens. Default: False."""
    min_tokens: int
    """No end token is drawn, and no stop text counts, before there are so many tokens. Default: 0."""
    include_stop: bool
    """The stop text, or the text of the token that ended the answer, is part of it. Default: False."""
    logprobs: int
    """Tell the log-probability of every token, and of so many of the likeliest, at most 20. Default: do not."""
    prompt_logprobs: int
    """The same of the prompt's tokens. Default: do not."""
    echo: bool
    """Send the prompt back, as tokens and text. Default: False."""
    json_schema: str | Mapping[str, object]
    """The answer is a JSON value that this schema describes: a dictionary, or the schema as JSON text. One such form an
    answer at most; default: none."""
    json_object: bool
    """The answer is a JSON object, whichever."""
    regex: str
    """The whole answer matches this regular expression."""
    choice: Sequence[str]
    """The answer is one of these texts."""
    grammar: str
    """The answer is a text of this context-free grammar, in Lark's notation."""
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
    best_of: int
    """Make so many samples, `n` to 64, and give the `n` best when all have ended. Default: `n`."""
    beam_width: int
    """Search with so many beams, 2 to 16, instead of drawing; the `n` best answers come at the end. Default: do not."""
    length_penalty: float
    """Of beam search: over 0 favours long answers. Default: 1."""
    early_stopping: bool | Literal["never"]
    """Of beam search, as in the transformers library. Default: False."""


_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "allowed_token_ids", "banned_token_ids", "bad_words"),
)
_STOPPING = ("max_tokens", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "include_stop")
_MEMBERS: dict[str, tuple[str, str, type[Message]]] = {
    **{name: ("sampling", name, pb.SamplingParams) for name in _SAMPLING},
    **{name: ("stopping", name, pb.StopParams) for name in _STOPPING},
    **{name: ("output", name, pb.OutputParams) for name in ("logprobs", "prompt_logprobs", "echo")},
    **{name: ("samples", name, pb.SampleParams) for name in ("n", "best_of")},
    "beam_width": ("beam_search", "width", pb.BeamSearchParams),
    "length_penalty": ("beam_search", "length_penalty", pb.BeamSearchParams),
}
"""Option -> member of the request, field of it, and its message."""
_EARLY_STOPPING: dict[object, pb.EarlyStopping.ValueType] = {
    False: pb.EARLY_STOPPING_HEURISTIC,
    True: pb.EARLY_STOPPING_FULL,
    "never": pb.EARLY_STOPPING_NEVER,
}
_LISTS_OF_TEXTS = ("stop", "bad_words", "choice")
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


def check_one_sample(options: RequestOptions) -> None:
    """Raises `ValueError` where several answers are asked for."""
    if options.get("n", 1) > 1:
        raise ValueError("n: complete() gives one answer; ask samples() for several")


def _check_prompt(prompt: str | None, options: RequestOptions) -> None:
    given = (prompt is not None) + sum(name in options for name in _PROMPTS)
    if given != 1:
        raise ValueError("give exactly one prompt: a text, messages=[...] or token_ids=[...]")


def _set(request: pb.GenerateRequest, name: str, value: object) -> None:
    """Set one option; protobuf itself raises for a wrong type or range."""
    if name in _LISTS_OF_TEXTS and isinstance(value, str):
        raise TypeError("expected a list of texts, got a text")
    if name == "prompt":
        request.text = value  # type: ignore[assignment]
    elif name == "messages":
        request.chat.CopyFrom(pb.ChatPrompt(messages=[pb.ChatMessage(**turn) for turn in value]))  # type: ignore[attr-defined]
    elif name == "token_ids":
        request.tokens.CopyFrom(pb.TokenPrompt(ids=value))  # type: ignore[arg-type]
    elif name in _MEMBERS:
        member, field, message = _MEMBERS[name]
        getattr(request, member).MergeFrom(message(**{field: value}))
    elif name == "early_stopping":
        if value not in _EARLY_STOPPING:
            raise ValueError('expected False, True or "never"')
        request.beam_search.early_stopping = _EARLY_STOPPING[value]
    elif name in FORMS:
        set_form(request, name, value)
    elif name in RequestOptions.__annotations__:
        setattr(request, name, value)
    else:
        raise TypeError("no such option")
