"""Ways to schedule, compared on one running server: the same load under one policy after the other, again and again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from citybus.bench.arrivals import Arrivals, timed
from citybus.bench.distribution import percentile
from citybus.bench.policies import LivePolicy, Policy
from citybus.bench.run import Run
from citybus.bench.workload import Call

WARM_UP_CALLS = 4
"""Sent before anything is measured: the first passes through a model are slower."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to schedule."""

    label: str
    policy: Policy

    @classmethod
    def parse(cls, text: str) -> Mode:
        """From "POLICY" or "POLICY:PARAMETER=VALUE;...". Raises `ValueError`."""
        name, _, rest = text.partition(":")
        pairs = [pair.partition("=") for pair in rest.split(";") if pair]
        if not name or any(not sign for _, sign, _ in pairs):
            raise ValueError(f"{text!r} is no mode: expected POLICY, or POLICY:PARAMETER=VALUE;PARAMETER=VALUE")
        return cls(text, Policy(name, {key: value for key, _, value in pairs}))


def default_modes(calls: Sequence[Call]) -> tuple[Mode, ...]:
    """Static batching, continuous batching that reserves in one piece, and continuous batching with paging.

    The first two reserve the longest reply of all calls, as a server does that cannot know how long a reply gets.
    """
    longest = {"longest_reply": str(max(call.num_output for call in calls))}
    return (
        Mode("static, contiguous", Policy("static_batch", longest)),
        Mode("continuous, contiguous", Policy("contiguous", longest)),
        Mode("continuous, paged", Policy("fcfs")),
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of one mode in one round, at `rate` requests per second (None: all at once)."""

    mode: Mode
    round: int
    rate: float | None
    run: Run


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None where there are no values."""
        return cls(percentile(values, 50), min(values), max(values)) if values else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All trials; the first mode is what the others are compared with."""

    modes: tuple[Mode, ...]
    trials: tuple[Trial, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """Why it is not valid; empty where it is."""
        return tuple(f"{trial.run.label}: {fault}" for trial in self.trials for fault in trial.run.faults)

    def values(self, mode: Mode, measure: Callable[[Run], float | None], rate: float | None = None) -> list[float]:
        """The measure in each round in which it is known."""
        runs = [trial.run for trial in self.trials if trial.mode == mode and trial.rate == rate]
        return [value for one in runs if (value := measure(one)) is not None]

    def ratios(self, mode: Mode, measure: Callable[[Run], float | None]) -> list[float]:
        """The measure of a mode over that of the first mode, round by round."""
        pairs = zip(self.values(mode, measure), self.values(self.modes[0], measure), strict=False)
        return [value / first for value, first in pairs if first]


def compare(
    live: LivePolicy,
    calls: Sequence[Call],
    modes: Sequence[Mode],
    rounds: int,
    rates: Sequence[float],
    seed: int,
    measure: Callable[[Sequence[Call], str], Run],
) -> Comparison:
    """Run all modes in every round, in turned order, all at once and then at each rate with Poisson arrivals.

    `measure` sends calls and has the label of the run. The policy of the beginning is brought back at the end, however
    that comes. Raises what `live` and `measure` raise.
    """
    trials: list[Trial] = []
    with live.restored():
        measure(timed(calls[:WARM_UP_CALLS], Arrivals("all-at-once"), seed), "warming up")
        for turn, rate, mode in _order(modes, rounds, rates):
            arrivals = Arrivals("all-at-once") if rate is None else Arrivals("poisson", rate)
            live.set(mode.policy)
            label = f"{mode.label}, {'all at once' if rate is None else f'{rate:g}/s'}, round {turn + 1} of {rounds}"
            run = measure(timed(calls, arrivals, seed), label)
            trials.append(Trial(mode, turn, rate, _checked(run, mode, live.get())))
    return Comparison(tuple(modes), tuple(trials))


def _order(modes: Sequence[Mode], rounds: int, rates: Sequence[float]) -> Iterator[tuple[int, float | None, Mode]]:
    """Every round begins with another mode, so that what drifts on the machine favours nobody."""
    for turn in range(rounds):
        start = turn % len(modes)
        for rate in (None, *rates):
            for mode in (*modes[start:], *modes[:start]):
                yield turn, rate, mode


def _checked(run: Run, mode: Mode, decides: Policy) -> Run:
    """The run, with its faults."""
    faults = [*run.faults]
    if decides.name != mode.policy.name:
        faults.append(f"{decides.name} decided at the end: the policy was changed or rolled back meanwhile")
    if run.summary.failures:
        faults.append(f"failed: {run.summary.failures}")
    return dataclasses.replace(run, faults=tuple(faults))
