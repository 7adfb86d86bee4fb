"""A comparison for machines (JSON), for people (a table), and for plots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from citybus.bench.compare import Comparison, Spread, Trial
from citybus.bench.distribution import Distribution
from citybus.bench.measures import Summary
from citybus.bench.report import rounded, verdict
from citybus.bench.run import Run

FORMAT = "citybus-bench-compare-1"


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """A column: its name, its value in a run, how it is multiplied and written, and whether it is compared."""

    name: str
    of: Callable[[Run], float | None]
    scale: float = 1.0
    digits: int = 1
    compared: bool = False


def _latency(pick: Callable[[Summary], Distribution | None], place: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        found = pick(run.summary)
        return None if found is None else float(getattr(found, place))

    return value


def _utilisation(run: Run) -> float | None:
    return run.server.kv_utilisation if run.server else None


def _idle_seats(run: Run) -> float | None:
    return run.server.idle_seats if run.server else None


MEASURES = (
    Measure("output tokens/s", lambda run: run.summary.output_tokens_per_s, compared=True),
    Measure("latency p50, s", _latency(lambda summary: summary.e2e_s, "p50"), compared=True),
    Measure("latency p99, s", _latency(lambda summary: summary.e2e_s, "p99"), compared=True),
    Measure("normalised latency, ms/token", _latency(lambda summary: summary.normalised_s, "mean"), 1000.0, 0),
    Measure("KV memory with tokens, %", _utilisation, 100.0),
    Measure("running", lambda run: run.server.running if run.server else None),
    Measure("seats idle, %", _idle_seats, 100.0),
)
NORMALISED = MEASURES[3]


def comparison_table(found: Comparison) -> RenderableType:
    """The runs with all sent at once, then the normalised latency at each rate; medians, least and most of the rounds.

    Under a figure that is compared stands its ratio to the first mode, taken round by round.
    """
    table = Table(title="all at once: median of the rounds (least - most)", title_justify="left", show_lines=True)
    table.add_column("")
    for mode in found.modes:
        table.add_column(mode.label, justify="right")
    for measure in MEASURES:
        cells = []
        for mode in found.modes:
            values = [measure.scale * value for value in found.values(mode, measure.of)]
            cell = spread_text(Spread.of(values), measure.digits)
            if measure.compared and mode is not found.modes[0]:
                cell += f"\nx {spread_text(Spread.of(found.ratios(mode, measure.of)), 2)}"
            cells.append(cell)
        table.add_row(measure.name, *cells)
    return Group(table, *([_rates_table(found)] if rates_of(found) else []), *verdict(found.faults))


def _rates_table(found: Comparison) -> Table:
    table = Table(title=f"{NORMALISED.name}, by rate", title_justify="left")
    table.add_column("requests/s", justify="right")
    for mode in found.modes:
        table.add_column(mode.label, justify="right")
    for rate in rates_of(found):
        spreads = [
            Spread.of([NORMALISED.scale * value for value in found.values(mode, NORMALISED.of, rate)])
            for mode in found.modes
        ]
        table.add_row(f"{rate:g}", *(spread_text(spread, NORMALISED.digits) for spread in spreads))
    return table


def rates_of(found: Comparison) -> list[float]:
    """The rates at which there were runs, rising."""
    return sorted({trial.rate for trial in found.trials if trial.rate is not None})


def spread_text(spread: Spread | None, digits: int) -> str:
    """A spread for people."""
    if spread is None:
        return "-"
    return f"{spread.median:.{digits}f} ({spread.least:.{digits}f} - {spread.most:.{digits}f})"


def panels(found: Comparison) -> dict[str, dict[str, list[float]]]:
    """Measure -> mode -> its values, for bars."""
    return {
        measure.name: {
            mode.label: [measure.scale * value for value in found.values(mode, measure.of)] for mode in found.modes
        }
        for measure in MEASURES
    }


def curves(found: Comparison) -> dict[str, list[tuple[float, float]]]:
    """Mode -> (rate, median normalised latency in ms per token)."""
    made: dict[str, list[tuple[float, float]]] = {}
    for mode in found.modes:
        for rate in rates_of(found):
            spread = Spread.of(found.values(mode, NORMALISED.of, rate))
            if spread is not None:
                made.setdefault(mode.label, []).append((rate, NORMALISED.scale * spread.median))
    return made


def comparison_dict(found: Comparison, workload: Mapping[str, object]) -> dict[str, Any]:
    """A comparison for JSON, without the single requests."""
    ratios = {
        measure.name: {mode.label: found.ratios(mode, measure.of) for mode in found.modes[1:]}
        for measure in MEASURES
        if measure.compared
    }
    plain = {"workload": workload, "ratios": ratios, "trials": [_trial_dict(trial) for trial in found.trials]}
    return {"format": FORMAT, "valid": not found.faults, **rounded(plain)}


def _trial_dict(trial: Trial) -> dict[str, Any]:
    run = trial.run
    return {
        "mode": trial.mode.label,
        "policy": trial.mode.policy.name,
        "parameters": dict(trial.mode.policy.parameters),
        "round": trial.round,
        "rate": trial.rate,
        "faults": run.faults,
        "cautions": run.cautions,
        "summary": dataclasses.asdict(run.summary),
        "client": dataclasses.asdict(run.client),
        "server": dataclasses.asdict(run.server) if run.server else None,
    }
