"""What an answer has to be: from a request's `structured_output` to a grammar."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from citybus.v1 import generation_pb2 as pb
from common.errors import InvalidRequest
from common.grammar import Grammar, GrammarKind

MAX_SOURCE_BYTES = 128 * 2**10
MAX_CHOICES = 1024
MAX_CHOICE_CHARS = 4096

_FIELD = "structured_output"


@dataclass(frozen=True, slots=True)
class Form:
    """A grammar, not tried yet, and the field of the request that it came from."""

    field: str
    grammar: Grammar


def form_of(request: pb.GenerateRequest) -> Form | None:
    """The form that a request asks for. Raises `InvalidRequest` where it has no source, or one that is too large."""
    if not request.HasField("structured_output"):
        return None
    if request.stopping.min_tokens:
        raise InvalidRequest(
            f"{_FIELD} cannot be set together with stopping.min_tokens: the form says where it can end"
        )
    asked = request.structured_output
    kind = asked.WhichOneof("form")
    if kind is None:
        raise InvalidRequest(f"{_FIELD} is empty: set json_schema, regex, choice, grammar or json_object")
    field = f"{_FIELD}.{kind}"
    match kind:
        case "json_schema":
            grammar = Grammar(GrammarKind.JSON_SCHEMA, asked.json_schema)
        case "regex":
            grammar = Grammar(GrammarKind.REGEX, asked.regex)
        case "choice":
            grammar = _choice(asked.choice.texts, field)
        case "grammar":
            grammar = Grammar(GrammarKind.LARK, asked.grammar)
        case "json_object":
            if not asked.json_object:
                raise InvalidRequest(f"{field} must be true; leave {_FIELD} out for an answer of any form")
            grammar = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
    _check_size(grammar.source, field)
    return Form(field, grammar)


def _choice(texts: Sequence[str], field: str) -> Grammar:
    if not 1 <= len(texts) <= MAX_CHOICES:
        raise InvalidRequest(f"{field}: there must be 1 to {MAX_CHOICES} texts, not {len(texts)}")
    if not all(1 <= len(text) <= MAX_CHOICE_CHARS for text in texts):
        raise InvalidRequest(f"{field}: each text must have 1 to {MAX_CHOICE_CHARS} characters")
    return Grammar(GrammarKind.LARK, "start: CHOICE\nCHOICE: " + " | ".join(map(_quoted, texts)))


def _quoted(text: str) -> str:
    """A text in the notation of the grammar: that of JSON, which leaves one more control character as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_size(source: str, field: str) -> None:
    if not source:
        raise InvalidRequest(f"{field} is empty")
    size = len(source.encode())
    if size > MAX_SOURCE_BYTES:
        raise InvalidRequest(f"{field} has {size} bytes, and {MAX_SOURCE_BYTES} are the most: make it smaller")
