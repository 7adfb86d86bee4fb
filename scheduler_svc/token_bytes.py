"""Token id -> the bytes it stands for, for the decoders that generative tokenizers use.

Byte-level BPE (GPT-2's alphabet) and SentencePiece-like vocabularies (a mark for the space, "<0xE2>" for a byte) have
in common that a token's bytes do not depend on its neighbours; only a leading space may be dropped at the very start
of a text. So an answer is the UTF-8 decoding of its tokens' bytes, and can be decoded one token at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

from common.errors import StartupError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Step = Callable[[str], str | bytes]


class TokenBytes(dict[int, bytes]):
    """The bytes of every token id, filled in as ids are asked for; ids without a token have none.

    `drops_leading_space` says that the tokenizer writes a space before the first word of a text, which is not part of
    the text. Raises `StartupError` for a decoder whose tokens depend on each other.
    """

    def __init__(self, backend: BackendTokenizer) -> None:
        super().__init__()
        decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": "none"}
        parts = _flatten(decoder)
        self._id_to_token = backend.id_to_token
        # Spellings of our own are added to the backend later. A model may score more ids than its tokenizer has, and
        # such a token must not tell them.
        self._ids = frozenset(backend.get_vocab(with_added_tokens=True).values())
        self._steps = [step for part in parts for step in _steps(part)]
        self.drops_leading_space = any(map(_drops_leading_space, parts))

    def __missing__(self, token_id: int) -> bytes:
        piece: str | bytes = (self._id_to_token(token_id) or "") if token_id in self._ids else ""
        for step in self._steps:
            if isinstance(piece, str):
                piece = step(piece)
        self[token_id] = data = piece.encode() if isinstance(piece, str) else piece
        return data

    def join(self, token_ids: Iterable[int]) -> bytes:
        """The bytes of several tokens."""
        return b"".join(map(self.__getitem__, token_ids))

    def text_of(self, token_ids: Iterable[int], hidden: Container[int]) -> str:
        """The text of a whole, without the tokens in `hidden`; bytes that are no UTF-8 become U+FFFD."""
        data = self.join(token_id for token_id in token_ids if token_id not in hidden)
        return (data.removeprefix(b" ") if self.drops_leading_space else data).decode("utf-8", "replace")


def _flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [part for inner in decoder["decoders"] for part in _flatten(inner)]


def _steps(part: Mapping[str, Any]) -> list[Step]:
    match part:
        case {"type": "ByteLevel"}:
            return [_byte_level]
        case {"type": "ByteFallback"}:
            return [_byte_fallback]
        case {"type": "Replace", "pattern": {"String": old}, "content": new}:
            return [lambda piece: piece.replace(old, new)]
        case {"type": "Metaspace", "replacement": mark}:
            return [lambda piece: piece.replace(mark, " ")]
        case {"type": "Fuse"} | {"type": "Strip", "content": " ", "start": 0 | 1, "stop": 0}:
            return []
    raise StartupError(f'tokenizer.json: a decoder of type "{part["type"]}" with these settings is not supported')


def _drops_leading_space(part: Mapping[str, Any]) -> bool:
    match part:
        case {"type": "Strip", "start": start}:
            return bool(start)
        case {"type": "Metaspace"}:
            return part.get("prepend_scheme") != "never"
    return False


def _byte_fallback(piece: str) -> str | bytes:
    found = _BYTE_TOKEN.fullmatch(piece)
    return bytes.fromhex(found[1]) if found else piece


def _byte_level(piece: str) -> bytes:
    """Added tokens may hold characters outside the alphabet: those stand for themselves."""
    try:
        return bytes(map(_BYTE_OF.__getitem__, piece))
    except KeyError:
        return piece.encode()


def _byte_alphabet() -> dict[str, int]:
    """The printable character -> the byte it stands for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in set(printable))
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
