"""What tokens cost: the price of an hour of the machine over what it sustains in that hour within the objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from citybus.bench.arrivals import Arrivals, timed
from citybus.bench.report import FORMAT
from citybus.bench.run import Run
from citybus.bench.shapes import Shape
from citybus.bench.workload import Call

FRACTIONS = (0.9, 0.75, 0.6, 0.45, 0.3, 0.15)
"""The rates that are tried, as shares of the answers per second when all is sent at once."""

SECONDS_PER_HOUR = 3600.0
MILLION = 1_000_000.0


class BadResult(ValueError):
    """The file is no result of `citybus bench serve`."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Cost of a million tokens: the hour's price is shared out so that an output token costs `weight` input tokens."""

    per_million_input: float
    per_million_output: float

    @classmethod
    def of(cls, price_per_hour: float, input_per_s: float, output_per_s: float, weight: float) -> Prices:
        """From the tokens a second that are sustained; of one kind at least, more than 0."""
        each = price_per_hour / SECONDS_PER_HOUR / (input_per_s + weight * output_per_s)
        return cls(MILLION * each, MILLION * weight * each)


@dataclass(frozen=True, slots=True)
class Sustained:
    """What one shape of traffic sustains. `refusal` says why nothing counts, where nothing does.

    `rate` is in requests per second, `good_share` the share of requests in time.
    """

    name: str
    rate: float
    good_share: float | None
    input_tokens_per_s: float
    output_tokens_per_s: float
    refusal: str | None = None


def sustained(
    shape: Shape,
    count: int,
    seed: int,
    max_tokens: int,
    least_good: float,
    measure: Callable[[Sequence[Call], str], Run],
) -> Sustained:
    """The highest of the rates tried at which at least `least_good` of the requests are in time and none fails.

    All at once first, for the peak; then `FRACTIONS` of it, from above. `measure` sends calls and has the run's label.
    """
    calls = shape.calls(count, seed, max_tokens)
    peak = measure(timed(calls, Arrivals("all-at-once"), seed), f"{shape.name}, all at once")
    last = _judged(shape.name, peak.summary.answers_per_s, peak, least_good)
    for fraction in FRACTIONS:
        rate = fraction * peak.summary.answers_per_s
        if rate <= 0:
            break
        run = measure(timed(calls, shape.arrivals(rate), seed), f"{shape.name}, {rate:.2f}/s")
        last = _judged(shape.name, rate, run, least_good)
        if last.refusal is None:
            break
    return last


def _judged(name: str, rate: float, run: Run, least_good: float) -> Sustained:
    summary = run.summary
    refusal = _refusal((*run.faults, *run.cautions), summary.failures, summary.good_share, least_good)
    return Sustained(name, rate, summary.good_share, summary.input_tokens_per_s, summary.output_tokens_per_s, refusal)


def sustained_in(result: Mapping[str, Any], least_good: float) -> Sustained:
    """What a result of `citybus bench serve` (its JSON) sustained. Raises `BadResult`."""
    if result.get("format") != FORMAT:
        raise BadResult(f"expected a JSON file of 'citybus bench serve', with format {FORMAT!r}")
    try:
        summary = result["summary"]
        reasons = [*result["faults"], *result["cautions"]]
        refusal = _refusal(reasons, summary["failures"], summary["good_share"], least_good)
        rate = summary["sent"] / (summary["window"]["end"] - summary["window"]["start"])
        speeds = summary["input_tokens_per_s"], summary["output_tokens_per_s"]
        return Sustained(result["label"], rate, summary["good_share"], *speeds, refusal)
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise BadResult(f"the result is damaged: {type(error).__name__}: {error}") from error


def _refusal(
    reasons: Sequence[str], failures: Mapping[str, int], good_share: float | None, least_good: float
) -> str | None:
    if reasons:
        return f"not valid: {reasons[0]}"
    if failures:
        return f"{sum(failures.values())} requests failed"
    if good_share is None:
        return "measured without objectives"
    if good_share < least_good:
        return f"{100 * good_share:.1f} % in time, {100 * least_good:.0f} % needed"
    return None
