"""Which model a process serves, so that a scheduler and an executor of different ones notice it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

_SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The name of a model folder, and the SHA-256 of its tokenizer.json; b"" where that is not known."""

    name: str
    tokenizer_digest: bytes

    def contradicts(self, other: ModelIdentity) -> bool:
        """Whether the two are known to have different tokenizers: one's token ids are not the other's."""
        known = self.tokenizer_digest and other.tokenizer_digest
        return bool(known) and self.tokenizer_digest != other.tokenizer_digest

    def __str__(self) -> str:
        return f"{self.name} (tokenizer {self.tokenizer_digest.hex()[:_SHOWN_DIGITS] or 'unknown'})"


def read_identity(folder: Path) -> ModelIdentity:
    """That of the model in `folder`. An executor serves a folder without a tokenizer.json all the same."""
    try:
        digest = hashlib.sha256((folder / "tokenizer.json").read_bytes()).digest()
    except OSError:
        digest = b""
    return ModelIdentity(folder.resolve().name, digest)
