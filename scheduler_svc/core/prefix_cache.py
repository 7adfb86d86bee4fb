"""Which blocks hold which prefix.

A full block is named by a hash of its parent's name and its own tokens, so that equal names mean equal prefixes from
the first token on. The chain gives the hits of a radix tree with two dictionaries.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from common.step import HASH_BYTES

MAX_CANDIDATES = 16
"""Blocks compared for a sub-block hit, newest first: bounds the work where thousands continue one prefix alike."""


def root_hash(key: bytes, salt: str | None) -> bytes:
    """The parent of first blocks. No salt is a space of its own, different from the salt ""."""
    label = b"" if salt is None else b"salt:" + salt.encode()
    return blake2b(label, key=key, digest_size=HASH_BYTES).digest()


def block_hash(key: bytes, parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of a full block: wide and keyed (RFC 7693), so it can be neither guessed nor collided."""
    content = parent + struct.pack(f"<{len(tokens)}I", *tokens)
    return blake2b(content, key=key, digest_size=HASH_BYTES).digest()


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """What is known of a block: `tokens` after the prefix named `parent`, written by the plan number `step`.

    `name` is the block's own hash where it is full, None where it is partly filled. A block of which only the name is
    known has no tokens: it is found by name, and never in part.
    """

    parent: bytes
    tokens: tuple[int, ...]
    step: int
    name: bytes | None


@dataclass(frozen=True, slots=True)
class PartialHit:
    """The first `num_tokens` tokens of `block` continue a prefix; the rest of it does not."""

    block: int
    num_tokens: int


class PrefixCache:
    """Finds blocks by content. It knows nothing of holders: `forget` is called for a block that is given out anew."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, int] = {}
        self._known: dict[int, CachedBlock] = {}
        self._children: dict[tuple[bytes, int], dict[int, None]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._known

    def __len__(self) -> int:
        return len(self._known)

    def find(self, name: bytes) -> int | None:
        """The block of that name. Changes nothing."""
        return self._by_name.get(name)

    def find_partial(self, parent: bytes, tokens: Sequence[int], before_step: int) -> PartialHit | None:
        """The block under `parent` that shares the most leading tokens with `tokens`. Changes nothing.

        Only blocks written by plans before `before_step`: a plan copies blocks before it computes.
        """
        best: PartialHit | None = None
        siblings = self._children.get((parent, tokens[0]), {}) if tokens else {}
        for block, _ in zip(reversed(siblings), range(MAX_CANDIDATES), strict=False):
            known = self._known[block]
            shared = _common_prefix(known.tokens, tokens)
            if known.step < before_step and (best is None or shared > best.num_tokens):
                best = PartialHit(block, shared)
        return best

    def insert(self, block: int, content: CachedBlock) -> bool:
        """Make the content of `block` known. False, and nothing is changed, where its name has a block already."""
        if content.name is not None:
            if content.name in self._by_name:
                return False
            self._by_name[content.name] = block
        self._known[block] = content
        if content.tokens:
            self._children.setdefault((content.parent, content.tokens[0]), {})[block] = None
        return True

    def forget(self, block: int) -> None:
        """What `block` held is no longer there. Nothing happens where it was not known."""
        content = self._known.pop(block, None)
        if content is None:
            return
        if content.name is not None:
            del self._by_name[content.name]
        if not content.tokens:
            return
        key = (content.parent, content.tokens[0])
        del self._children[key][block]
        if not self._children[key]:
            del self._children[key]


def _common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    length = min(len(left), len(right))
    for index in range(length):
        if left[index] != right[index]:
            return index
    return length
