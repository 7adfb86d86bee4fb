"""How much text one token can take, where a tokenizer's parts let it be known without encoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

from scheduler_svc.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class LongestToken:
    """Its `num_bytes`; `dropped` are the bytes that the vocabulary lacks, and that may give no token at all."""

    num_bytes: int
    dropped: bytes

    def proves_over(self, limit: int, text: str) -> bool:
        """Whether its length, or that of its beginning, proves that `text` has more than `limit` tokens."""
        most = limit * self.num_bytes
        return len(text) > most and len(text[: 2 * most].encode().translate(None, self.dropped)) > most


def longest_token(backend: BackendTokenizer, token_bytes: TokenBytes) -> LongestToken | None:
    """That of a byte-level tokenizer; None for one that may drop more than some bytes, or fold text together."""
    if backend.normalizer is not None or not _splits_bytes(backend):
        return None
    if any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values()):
        return None
    every = [token_bytes[token_id] for token_id in backend.get_vocab(with_added_tokens=True).values()]
    alphabet = {data for data in every if len(data) == 1}
    return LongestToken(max(map(len, every)), bytes(byte for byte in range(256) if bytes([byte]) not in alphabet))


def _splits_bytes(backend: BackendTokenizer) -> bool:
    """Whether text goes to the model byte by byte, with nothing left out on the way."""
    if backend.pre_tokenizer is None:
        return False
    parts = _flatten(json.loads(backend.pre_tokenizer.__getstate__()))
    return any(part["type"] == "ByteLevel" for part in parts) and all(map(_keeps_text, parts))


def _flatten(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(part["pretokenizers"]) if part["type"] == "Sequence" else [part]


def _keeps_text(part: Mapping[str, Any]) -> bool:
    return part["type"] in ("ByteLevel", "Digits") or (part["type"] == "Split" and part["behavior"] != "Removed")
