"""Turns the tokens of an answer into text as they come: whole characters only.

The text goes on where the prompt ends, byte for byte, and never repeats any of it. A prompt may end inside a
character: where the answer's first bytes complete it, the answer begins with the whole character; where they do not,
the prompt's bytes are forgotten. Bytes that are no UTF-8 become one replacement character (U+FFFD) per malformed
sequence (Unicode 16, section 3.9, the practice recommended there), and so does a character that the end cuts off.
The text is exactly what the tokenizer's own decoder gives for all tokens at once, with one exception: SentencePiece
decoders replace a whole run of byte tokens where any byte of it is malformed.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from scheduler_svc.token_bytes import TokenBytes

LONGEST_CHARACTER = 4
"""In bytes: as many tokens of a prompt's end, at most, are looked at."""

_CONTINUATION_MASK, _CONTINUATION = 0xC0, 0x80  # the bytes 0b10xxxxxx continue a character

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one answer.

    `prompt` is what it continues; empty for an answer that is a text of its own, such as a turn of a chat, which then
    begins without the space that some tokenizers put before a first word. Tokens in `hidden` give no text.
    """

    def __init__(self, token_bytes: TokenBytes, prompt: Sequence[int], hidden: frozenset[int]) -> None:
        self._token_bytes = token_bytes
        self._hidden = hidden
        self._decoder = _utf8("replace")
        self._decoder.setstate((_cut_character(token_bytes.join(prompt[-LONGEST_CHARACTER:])), 0))
        self._drop_space = token_bytes.drops_leading_space and not prompt
        self._started = False

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        if token_id in self._hidden:
            return ""
        data = self._token_bytes[token_id]
        return self._decoder.decode(data) if self._started else self._begin(data)

    def flush(self) -> str:
        """What is left at the end: nothing, or a replacement character."""
        return self._decoder.decode(b"", final=True) if self._started else ""

    def _begin(self, data: bytes) -> str:
        """The characters of the first bytes."""
        if not data:
            return ""
        self._started = True
        if data[0] & _CONTINUATION_MASK != _CONTINUATION:
            self._decoder.reset()
        return self._decoder.decode(data.removeprefix(b" ") if self._drop_space else data)


def _cut_character(data: bytes) -> bytes:
    """The incomplete character at the end of `data`."""
    decoder = _utf8("replace")
    decoder.decode(data)
    return decoder.getstate()[0]
