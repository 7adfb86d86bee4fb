"""Shapes of traffic: what is asked for and how it arrives, at any rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from citybus.bench.arrivals import Arrivals
from citybus.bench.traces import Trace
from citybus.bench.workload import Call, Lengths, drawn, fitted, sampled, with_shared_prefix


@dataclass(frozen=True, slots=True)
class Shape:
    """`calls` makes so many calls from a seed, for a context of so many tokens; `arrivals` says when, at a rate."""

    name: str
    calls: Callable[[int, int, int], list[Call]]
    arrivals: Callable[[float], Arrivals]


def _poisson(rate: float) -> Arrivals:
    return Arrivals("poisson", rate)


def _bursty(rate: float) -> Arrivals:
    return Arrivals("gamma", rate, variation=4.0)


def _steady_calls(count: int, seed: int, max_tokens: int) -> list[Call]:
    return fitted(drawn(count, Lengths(128, 128), Lengths(64, 64), seed), max_tokens)


def _shared_calls(count: int, seed: int, max_tokens: int) -> list[Call]:
    own = drawn(count, Lengths(32, 96), Lengths(64, 64), seed)
    return fitted(with_shared_prefix(own, num_tokens=512, groups=4), max_tokens)


def _mixed_calls(count: int, seed: int, max_tokens: int) -> list[Call]:
    return fitted(drawn(count, Lengths(16, 512), Lengths(16, 256), seed), max_tokens)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("steady", _steady_calls, _poisson),
        Shape("bursty", _steady_calls, _bursty),
        Shape("shared-prefix", _shared_calls, _poisson),
        Shape("mixed-lengths", _mixed_calls, _poisson),
    )
}
"""By name. 128 prompt and 64 output tokens, Poisson; the same in bursts (coefficient of variation 4); one of 4 shared
prefixes of 512 tokens before 32-96 of its own; 16-512 prompt and 16-256 output tokens."""


def trace_shape(name: str, trace: Trace) -> Shape:
    """A trace with its own times, stretched to the rate; lengths without times are drawn, and arrive by Poisson."""

    def calls(count: int, seed: int, max_tokens: int) -> list[Call]:
        scaled: Sequence[Call] = fitted(trace.calls, max_tokens)
        return list(scaled[:count]) if trace.timed else sampled(scaled, count, seed)

    return Shape(name, calls, (lambda rate: Arrivals("trace", rate)) if trace.timed else _poisson)
