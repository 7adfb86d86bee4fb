"""When requests are sent."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from citybus.bench.workload import Call

Kind = Literal["poisson", "gamma", "trace", "all-at-once"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests arrive.

    "poisson" and "gamma" draw independent gaps of mean 1 / `rate` seconds; the coefficient of variation of gamma's is
    `variation` (1 is Poisson, more is burstier). "trace" keeps the times of the trace, stretched to the mean rate
    where there is one. "all-at-once" sends everything at time 0.
    """

    kind: Kind
    rate: float | None = None
    variation: float = 1.0

    def __post_init__(self) -> None:
        if self.kind in ("poisson", "gamma") and self.rate is None:
            raise ValueError(f"{self.kind} arrivals need a rate in requests per second: give --rate")
        if self.kind == "all-at-once" and self.rate is not None:
            raise ValueError("a rate makes no sense where all is sent at once: leave --rate out")
        if (self.rate is not None and self.rate <= 0) or self.variation <= 0:
            raise ValueError("the rate and the coefficient of variation must be more than 0")

    @classmethod
    def parse(cls, text: str, rate: float | None) -> Arrivals:
        """From "poisson", "gamma:CV", "trace" or "all-at-once". Raises `ValueError`."""
        if text in ("poisson", "trace", "all-at-once"):
            return cls(text, rate)  # type: ignore[arg-type]
        found = re.fullmatch(r"gamma:(\d+(?:\.\d+)?)", text)
        if found is None:
            raise ValueError(
                f"{text!r} are no arrivals: expected poisson, gamma:CV such as gamma:2, trace or all-at-once"
            )
        return cls("gamma", rate, float(found[1]))


def timed(calls: Sequence[Call], arrivals: Arrivals, seed: int) -> list[Call]:
    """The calls with their times set, the first at 0."""
    if arrivals.kind == "trace":
        span, mean_rate = calls[-1].at - calls[0].at, arrivals.rate
        stretch = (len(calls) - 1) / mean_rate / span if mean_rate is not None and span > 0 else 1.0
        return [replace(call, at=(call.at - calls[0].at) * stretch) for call in calls]
    if arrivals.kind == "all-at-once" or arrivals.rate is None:
        return [replace(call, at=0.0) for call in calls]
    chance = random.Random(f"arrivals {seed}")
    variation = 1.0 if arrivals.kind == "poisson" else arrivals.variation
    shape = 1 / variation**2  # of a gamma distribution; 1 is the exponential one
    gaps = (chance.gammavariate(shape, 1 / (shape * arrivals.rate)) for _ in calls[1:])
    times = itertools.accumulate(gaps, initial=0.0)
    return [replace(call, at=at) for call, at in zip(calls, times, strict=True)]
