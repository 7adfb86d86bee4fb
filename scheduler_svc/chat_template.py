"""Renders a conversation with the model's own chat template, by the conventions of Hugging Face transformers.

A template sees `messages` (each with `role` and `content`), `add_generation_prompt` (always true: the model is to
answer), the tokenizer's named special tokens, `tools` and `documents` (None), `raise_exception` and `strftime_now`.
Templates come from the model folder only, never from a request, and text of a message is never evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from common.errors import InvalidRequest, StartupError
from scheduler_svc.model_files import ChatTemplateSource
from scheduler_svc.template_sandbox import MeteredContext, TemplateSandbox

MAX_SECONDS = 2.0
"""Processor time a rendering may take."""

MAX_CHARACTERS = 1 << 25
"""Characters a rendering may write: twice what the largest message of a client can hold."""

_MAX_MESSAGE_CHARS = 500


class ChatTemplate:
    """The template of a model. Rendering is safe in several threads at once.

    Raises `StartupError` where the template's syntax is broken.
    """

    def __init__(
        self,
        source: ChatTemplateSource,
        special_tokens: Mapping[str, str],
        *,
        max_seconds: float = MAX_SECONDS,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        sandbox = TemplateSandbox(max_seconds, max_characters)
        sandbox.add_filter("tojson", _tojson)
        sandbox.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = sandbox.compile_template(source.text)
        except TemplateSyntaxError as error:
            raise StartupError(f"{source.file}: line {error.lineno} of the chat template: {error.message}") from error
        self._variables = {**special_tokens, "tools": None, "documents": None, "add_generation_prompt": True}

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text that the model continues.

        Raises `InvalidRequest`, with the template's own message where the template refuses the conversation.
        """
        try:
            rendered = self._render(messages)
        except _Refused as error:
            raise InvalidRequest(f"chat: the model's template refuses this conversation: {_line(error)}") from error
        except TemplateError as error:
            raise InvalidRequest(f"chat: the model's template fails on this conversation: {_line(error)}") from error
        except Exception as error:
            # Of an exception of Python's own only the name is told: its message could quote the conversation.
            name = type(error).__name__
            raise InvalidRequest(f"chat: the model's template fails on this conversation with {name}") from error
        if not rendered:
            raise InvalidRequest("chat: the model's template makes an empty prompt of this conversation")
        return rendered

    def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
        context = self._template.new_context({**self._variables, "messages": [dict(each) for each in messages]})
        assert isinstance(context, MeteredContext)
        size = 0
        pieces = []
        for piece in self._template.root_render_func(context):
            context.tick()
            context.check_size(size := size + len(piece))
            pieces.append(piece)
        return "".join(pieces)


class _Refused(TemplateError):
    """The template called `raise_exception`."""


def _raise_exception(message: object = "") -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, leaves <, > and & as they are: a prompt is not HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:_MAX_MESSAGE_CHARS]
