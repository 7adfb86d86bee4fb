"""What an answer has to be a text of."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class GrammarKind(enum.StrEnum):
    """What the source of a `Grammar` is."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """The texts an answer can be; `end_token_ids` are drawn where it is complete, and only there."""

    kind: GrammarKind
    source: str
    end_token_ids: tuple[int, ...] = ()
