"""Results as pictures (PNG). Needs matplotlib: the extra `bench`."""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from citybus.bench.distribution import percentile
from citybus.bench.load import Record
from citybus.bench.measures import e2e, tpot, ttft
from citybus.bench.run import Run
from citybus.failure import Failure

_BINS = 40
"""Points of a curve over time."""

_PERCENTILES = (50, 90, 99)

Points = list[tuple[float, float]]


def check() -> None:
    """Raises `Failure` where matplotlib is missing."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise Failure(
            "plots need matplotlib: run \".venv/bin/pip install -e '.[bench]'\" in the clone, or leave --plot out"
        ) from error


def draw_run(path: Path, run: Run) -> None:
    """Latency percentiles, throughput, seats and KV memory over time. Raises `Failure` and `OSError`."""
    figure, axes = _figure(f"{run.label}: {run.model}{'' if not run.faults else ' (NOT VALID)'}", 2, 3)
    answered = [record for record in run.records if record.failure is None]
    for axis, name, measure in (
        (axes[0][0], "time to first token, ms", ttft),
        (axes[0][1], "time per output token, ms", tpot),
        (axes[0][2], "end to end, ms", e2e),
    ):
        for q, points in latency_over_time(answered, measure).items():
            _line(axis, points, f"p{q}")
        _label(axis, "sent at, s", name)
    _line(axes[1][0], tokens_over_time(answered), "output tokens/s")
    _label(axes[1][0], "s", "output tokens/s")
    readings = run.readings
    _line(axes[1][1], [(reading.at, float(reading.running)) for reading in readings], "running")
    _line(axes[1][1], [(reading.at, float(reading.waiting)) for reading in readings], "waiting")
    _label(axes[1][1], "s", "requests")
    held = [(one.at, 100 * one.tokens_held / one.slots_reserved) for one in readings if one.slots_reserved]
    _line(axes[1][2], held, "tokens / reserved slots")
    _label(axes[1][2], "s", "%")
    axes[1][2].set_ylim(0, 105)
    for axis in (axes[1][0], axes[1][1], axes[1][2]):
        axis.axvspan(run.summary.window.start, run.summary.window.end, alpha=0.08)
    _save(figure, path)


def draw_bars(path: Path, title: str, panels: Mapping[str, Mapping[str, Sequence[float]]], curves: Curves) -> None:
    """One panel of bars for each measure (label -> the values of its rounds), and one of curves where there are any.

    A bar is the median of its rounds; the line through it goes from the least to the most. Raises `Failure` and
    `OSError`.
    """
    count = len(panels) + bool(curves)
    columns = min(3, count)
    figure, axes = _figure(title, math.ceil(count / columns), columns)
    flat = [axis for row in axes for axis in row]
    for axis, (name, bars) in zip(flat, panels.items(), strict=False):
        for place, (label, values) in enumerate(bars.items()):
            if not values:
                continue
            middle = percentile(values, 50)
            spread = [[middle - min(values)], [max(values) - middle]]
            axis.bar(place, middle, yerr=spread, capsize=4, label=label)
        axis.set_xticks(range(len(bars)), [label.replace(", ", ",\n") for label in bars], fontsize=8)
        axis.set_title(name, fontsize=10)
    if curves:
        for label, points in curves.items():
            flat[len(panels)].plot(*zip(*points, strict=True), marker="o", label=label)
        _label(flat[len(panels)], "requests/s", "normalised latency, ms per token")
        flat[len(panels)].set_yscale("log")
    for axis in flat[count:]:
        axis.set_visible(False)
    _save(figure, path)


Curves = Mapping[str, Points]


def latency_over_time(records: Sequence[Record], measure: Callable[[Record], float | None]) -> dict[int, Points]:
    """Percentile -> (middle of a stretch of sending times, latency in ms) where the stretch has requests."""
    bins: defaultdict[int, list[float]] = defaultdict(list)
    width = _width([record.planned for record in records])
    for record in records:
        if (value := measure(record)) is not None:
            bins[int(record.planned / width)].append(1000 * value)
    return {
        q: [((place + 0.5) * width, percentile(values, q)) for place, values in sorted(bins.items())]
        for q in _PERCENTILES
    }


def tokens_over_time(records: Sequence[Record]) -> Points:
    """(middle of a stretch of time, output tokens a second in it)."""
    times = [time for record in records for time in record.token_times]
    width = _width(times)
    bins: defaultdict[int, int] = defaultdict(int)
    for time in times:
        bins[int(time / width)] += 1
    return [((place + 0.5) * width, bins[place] / width) for place in range(max(bins, default=-1) + 1)]


def _width(times: Sequence[float]) -> float:
    """Length of a stretch, in seconds."""
    return max(times, default=0.0) / _BINS or 1.0


def _figure(title: str, rows: int, columns: int) -> tuple[Any, Any]:
    check()
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(5 * columns, 3.6 * rows), layout="constrained"
    )
    figure.suptitle(title)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _line(axis: Any, points: Points, label: str) -> None:
    axis.plot([at for at, _ in points], [value for _, value in points], label=label)


def _label(axis: Any, below: str, beside: str) -> None:
    axis.set_xlabel(below)
    axis.set_ylabel(beside)
    axis.legend(fontsize=8)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="png", dpi=110)
