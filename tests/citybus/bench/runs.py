"""Runs made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from citybus.bench.load import Record
from citybus.bench.measures import Objectives, Window, summarise
from citybus.bench.run import Run
from citybus.bench.saturation import ClientLoad
from citybus.bench.server import Reading, summary_of

NONE = Objectives()
IDLE_CLIENT = ClientLoad(0.0, 0.0, 0.0, 0.0, 0.0)


def made_run(
    records: Sequence[Record],
    window: Window,
    *,
    label: str = "load",
    objectives: Objectives = NONE,
    readings: Sequence[Reading] = (),
    faults: tuple[str, ...] = (),
    cautions: tuple[str, ...] = (),
) -> Run:
    """A run whose client did nothing wrong."""
    summary = summarise(records, window, objectives)
    server = summary_of(readings, window)
    return Run(label, "tiny", summary, IDLE_CLIENT, server, faults, cautions, tuple(records), tuple(readings))
