"""The spellings of control tokens in text: how a template's are told from a caller's.

The marks used here are made of noncharacters and random numbers of this process, so that no caller can write one. The
two numbers are independent: a template may quote a message, break marks and all, to the caller it refuses, and whoever
knows the break mark still cannot write a stand-in.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Sequence

_STRETCH = 1 << 16
"""Characters handled at a stretch: some milliseconds where they are hostile, in which no other thread gets the GIL."""


class ControlSpellings:
    """Finds and replaces the spellings `control` of a tokenizer's control tokens.

    `stand_ins` maps each to a private spelling of the same token; `break_mark` parts what would otherwise be read as
    one.
    """

    def __init__(self, control: Sequence[str]) -> None:
        secret = secrets.randbits(64)
        self.break_mark = f"\ufdd0{secrets.randbits(64)}\ufdd1"
        self.stand_ins = {spelling: f"\ufdd2{secret}.{rank}\ufdd3" for rank, spelling in enumerate(control)}
        longest_first = sorted(control, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._longest = max(map(len, control), default=0)
        self._beginnings = {spelling[:length] for spelling in control for length in range(1, len(spelling))}
        self._endings = {spelling[length:] for spelling in control for length in range(1, len(spelling))}

    def stand_in(self, text: str) -> str:
        """`text` with every spelling replaced by its stand-in."""
        pieces: list[str] = []
        start = 0
        while start < len(text):
            end = start + _STRETCH
            for match in self._pattern.finditer(text, start, end + self._longest - 1):
                if match.start() >= end:
                    break  # it is found whole from there
                pieces += (text[start : match.start()], self.stand_ins[match[0]])
                start = match.end()
            pieces.append(text[start:end])
            start = max(start, end)
        return "".join(pieces)

    def shield(self, text: str) -> str:
        """`text` with a break mark in every spelling, and in a part of one at its edges.

        Whatever is written around it, no spelling then begins or ends inside it. Templates trim messages, so the edges
        are those of the trimmed text.
        """
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        lengths = range(1, min(self._longest, end - start + 1))
        cuts = {start + length - 1 for length in lengths if text[start : start + length] in self._endings}
        cuts |= {end - length + 1 for length in lengths if text[end - length : end] in self._beginnings}
        cuts |= set(range(_STRETCH, len(text), _STRETCH))
        bounds = [0, *sorted(cuts), len(text)]
        return self.break_mark.join(self._part(text[left:right]) for left, right in itertools.pairwise(bounds))

    def _part(self, text: str) -> str:
        return self._pattern.sub(lambda match: match[0][:1] + self.break_mark + match[0][1:], text)

    def unshield(self, text: str) -> str:
        """`text` without break marks."""
        return text.replace(self.break_mark, "")
