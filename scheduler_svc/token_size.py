"""How many bytes of text one token can stand for at most, so that an input can be refused by its size alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

_NORMAL_FORM_SHRINKS = 4
"""A Unicode normal form makes text at most this many times shorter in bytes: U+1D400 (4 bytes) becomes "A"."""


def longest_token_bytes(backend: BackendTokenizer) -> int | None:
    """The bound for this tokenizer, or None where a token can stand for text of any length."""
    shrinks = _shrinks(json.loads(backend.normalizer.__getstate__()) if backend.normalizer else None)
    if shrinks is None or _drops_text(backend) or not _covers_every_byte(backend):
        return None
    return shrinks * max(len(token.encode()) for token in backend.get_vocab())


def _shrinks(normalizer: Mapping[str, Any] | None) -> int | None:
    """How many times shorter in bytes the normalizer can make a text; None: without bound."""
    match normalizer:
        case None | {"type": "Prepend"}:
            return 1
        case {"type": "Replace", "pattern": {"String": old}, "content": new} if len(new.encode()) >= len(old.encode()):
            return 1
        case {"type": "NFC" | "NFD" | "NFKC" | "NFKD"}:
            return _NORMAL_FORM_SHRINKS
        case {"type": "Sequence", "normalizers": inner}:
            return _product([_shrinks(each) for each in inner])
    return None


def _product(factors: list[int | None]) -> int | None:
    result = 1
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result


def _covers_every_byte(backend: BackendTokenizer) -> bool:
    """Whether every text has tokens, so that there is no unknown token: byte-level, or one token a byte."""
    decoder = backend.decoder.__getstate__() if backend.decoder else b""
    return b'"ByteLevel"' in decoder or bool(getattr(backend.model, "byte_fallback", False))


def _drops_text(backend: BackendTokenizer) -> bool:
    """Whether white space can vanish between tokens, or around an added one."""
    splitter = backend.pre_tokenizer.__getstate__() if backend.pre_tokenizer else b""
    added = backend.get_added_tokens_decoder().values()
    return b'"Removed"' in splitter or b'"Whitespace' in splitter or any(each.lstrip or each.rstrip for each in added)
