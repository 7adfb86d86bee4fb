"""Makes token ids of a prompt, without holding up the event loop.

Short plain text is encoded at once; everything else in threads of its own, which run beside the event loop: encoding
releases the GIL, and rendering a template is interrupted by it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from common.errors import Exhausted, InvalidRequest
from scheduler_svc.chat_template import ChatTemplate
from scheduler_svc.tokenizer import Tokenizer, is_long

MAX_WAITING_BYTES = 128 * 2**20
"""Most bytes of prompts that wait for a thread or are encoded, as they are held; a larger one is taken alone."""

_RETRY_AFTER_S = 1.0
_THREADS = 2
_SHORT_CHARACTERS = 4096  # about a millisecond to encode, a few hops between threads


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text for the model to continue."""

    field: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation for the model to answer."""

    field: ClassVar[str] = "chat"
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt that is token ids already."""

    field: ClassVar[str] = "tokens"
    ids: tuple[int, ...]


Prompt = TextPrompt | ChatPrompt | TokenPrompt

_Source = TypeVar("_Source")


class PromptEncoder:
    """Encodes prompts for one model; `template` is None where the model has no chat template.

    Prompts that wait for a thread take at most `max_waiting_bytes`.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, max_waiting_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="encode")

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    async def encode(self, prompt: Prompt, vocab_size: int, max_model_len: int) -> tuple[int, ...]:
        """Token ids of `prompt`: at least one, each below `vocab_size`, possibly more than `max_model_len`.

        Raises `InvalidRequest`, also for long text that has many more than `max_model_len` tokens, and `Exhausted`
        where too much text waits already.
        """
        match prompt:
            case TokenPrompt():
                ids = prompt.ids
            case TextPrompt() if len(prompt.text) <= _SHORT_CHARACTERS:
                ids = self._encode_text(prompt.text, max_model_len)
            case TextPrompt():
                self.tokenizer.check_length(prompt.text, max_model_len)
                with self._waiting([prompt.text]):
                    ids = await self._in_thread(self._encode_text, prompt.text, max_model_len)
            case ChatPrompt():
                with self._waiting([message.content for message in prompt.messages]):
                    ids = await self._in_thread(self._encode_chat, prompt.messages, max_model_len)
        if not ids:
            raise InvalidRequest(f"{prompt.field}: the prompt is empty; it must have at least one token")
        if (largest := max(ids)) >= vocab_size:
            raise InvalidRequest(f"{prompt.field}: token id {largest} is over {vocab_size - 1}, the model's largest")
        return ids

    def close(self) -> None:
        """End the threads; what they have not begun is dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def _waiting(self, texts: Sequence[str]) -> Iterator[None]:
        """Count the memory of a prompt while it waits and is encoded. Raises `Exhausted` where it would be too much."""
        num_bytes = sum(map(sys.getsizeof, texts))
        if self._waiting_bytes and self._waiting_bytes + num_bytes > self._max_waiting_bytes:
            raise Exhausted(
                f"prompts of {self._waiting_bytes >> 20} MiB wait to be encoded, as much as the server takes at once; "
                "try again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._waiting_bytes += num_bytes
        try:
            yield
        finally:
            self._waiting_bytes -= num_bytes

    async def _in_thread(
        self, encode: Callable[[_Source, int], tuple[int, ...]], source: _Source, max_model_len: int
    ) -> tuple[int, ...]:
        held = [source]  # the pool keeps a cancelled job until its turn; the text must not wait with it
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._pool, lambda: encode(held.pop(), max_model_len)
            )
        finally:
            held.clear()

    def _encode_text(self, text: str, max_model_len: int) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode_text(text, max_model_len))

    def _encode_chat(self, messages: Sequence[Message], max_model_len: int) -> tuple[int, ...]:
        if self._template is None:
            raise InvalidRequest("chat: the model has no chat template; send the prompt as text or tokens")
        limit: int | None = max_model_len
        if is_long(sum(len(message.content) for message in messages), max_model_len):
            # Only the template knows what of it the model is to see. Shielding takes many times as long as rendering,
            # and adds little: only a control token that is spelled out takes more tokens then.
            self.tokenizer.check_tokens(self._template.render(list(map(_plain, messages))), max_model_len)
            limit = None
        shield, unshield = self.tokenizer.shield, self.tokenizer.unshield
        shielded = [_plain(replace(message, content=shield(message.content))) for message in messages]
        try:
            rendered = self._template.render(shielded)
        except InvalidRequest as error:
            raise InvalidRequest(unshield(str(error))) from error
        return tuple(self.tokenizer.encode_rendered(rendered, limit))


def _plain(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def check_room(num_tokens: int, max_model_len: int) -> None:
    """Raise `InvalidRequest` where a prompt of `num_tokens` leaves no room for one token of an answer."""
    if num_tokens >= max_model_len:
        raise InvalidRequest(
            f"the prompt has {num_tokens} tokens and the model's context is {max_model_len}, which leaves no room for "
            f"an answer: shorten it to at most {max_model_len - 1} tokens"
        )
