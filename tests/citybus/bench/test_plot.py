"""Pictures are made, and curves have the right points."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from citybus.bench import plot
from citybus.bench.measures import Window, ttft
from citybus.failure import Failure
from tests.citybus.bench.runs import made_run
from tests.citybus.bench.timelines import reading, record

PNG = b"\x89PNG\r\n\x1a\n"


def test_curves_over_time() -> None:
    """40 stretches of 1 s: the first has latencies of 1 and 3 s, the last one of 2 s."""
    records = [record(0.0, 1.0), record(0.5, 3.5), record(40.0, 42.0)]
    found = plot.latency_over_time(records, ttft)
    assert found[50] == [(0.5, 2000.0), (40.5, 2000.0)]
    assert found[90] == [(0.5, pytest.approx(2800.0)), (40.5, 2000.0)]
    points = plot.tokens_over_time([record(0.0, 1.0, 1.5, 80.0)])
    assert len(points) == 41
    assert (points[0], points[1], points[40]) == ((1.0, 1.0), (3.0, 0.0), (81.0, 0.5))
    assert plot.tokens_over_time([]) == []


def test_a_run_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    readings = [reading(0.0, 1, tokens_held=8, slots_reserved=16), reading(1.0)]
    run = made_run([record(0.0, 1.0, 2.0), record(1.0, failure="UNAVAILABLE")], Window(0.0, 2.0), readings=readings)
    plot.draw_run(tmp_path / "run.png", run)
    assert (tmp_path / "run.png").read_bytes().startswith(PNG)


def test_bars_and_curves_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    panels = {"speed": {"old": [1.0, 2.0], "new": [5.0]}, "share": {"old": [], "new": [3.0]}}
    plot.draw_bars(tmp_path / "bars.png", "title", panels, {"old": [(1.0, 2.0), (2.0, 9.0)]})
    assert (tmp_path / "bars.png").read_bytes().startswith(PNG)
    plot.draw_bars(tmp_path / "more.png", "title", panels, {})
    assert (tmp_path / "more.png").read_bytes().startswith(PNG)


def test_without_matplotlib_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Failure, match=r"pip install -e '\.\[bench\]'\" in the clone, or leave --plot out"):
        plot.check()
