"""Percentiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of `count` values, in their unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution | None:
        """None where there are no values."""
        if not values:
            return None
        ordered = sorted(values)
        p50, p90, p99 = (_at(ordered, q) for q in (50, 90, 99))
        return cls(len(ordered), statistics.fmean(ordered), p50, p90, p99)


def percentile(values: Sequence[float], q: float) -> float:
    """The `q`-th percentile (0 to 100) of at least one value, interpolated linearly between its neighbours."""
    return _at(sorted(values), q)


def _at(ordered: Sequence[float], q: float) -> float:
    place = q / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
