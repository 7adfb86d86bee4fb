"""Which keys of a sequence some of its tokens see, and how the reference of attention pads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KEYS = 32
RUN = 128


@dataclass(frozen=True, slots=True)
class Span:
    """Keys `start` to `end` - 1 of a sequence: those that some tokens of a tile see."""

    start: int
    end: int

    @property
    def base(self) -> int:
        """Where the first run begins: position of the tile's first key."""
        return self.start // RUN * RUN

    @property
    def width(self) -> int:
        """Keys from `base` on, padding included."""
        return -(-(self.end - self.base) // KEYS) * KEYS

    @property
    def whole(self) -> int:
        """Keys from `base` on, up to the first padding."""
        return 0 if self.start > self.base else self.end - self.base


def span_of(length: int, tokens: int, window: int | None) -> Span:
    """What the last `tokens` of `length` tokens see."""
    return Span(0 if window is None else max(length - tokens + 1 - window, 0), length)


def grouped(spans: Mapping[int, Span], budget: int) -> Iterator[dict[int, Span]]:
    """`spans` of sequences, the shorter ones first, in groups whose padded keys are at most `budget` in all; a sequence
    beyond that is alone."""
    group: dict[int, Span] = {}
    for index, span in sorted(spans.items(), key=lambda item: (item[1].width, item[1].end)):
        if group and (len(group) + 1) * span.width > budget:
            yield group
            group = {}
        group[index] = span
    if group:
        yield group
