"""The price of tokens: what is sustained, and what follows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from citybus.bench.cost import BadResult, Prices, sustained, sustained_in
from citybus.bench.measures import Objectives, Window
from citybus.bench.report import run_dict, run_table
from citybus.bench.run import Run
from citybus.bench.shapes import SHAPES, trace_shape
from citybus.bench.traces import Trace
from citybus.bench.workload import Call
from tests.citybus.bench.runs import made_run
from tests.citybus.bench.timelines import record
from tests.citybus.test_cli import run as citybus

SLO = Objectives(ttft_s=1.0)


def test_the_price_of_an_hour_is_shared_out_by_weight() -> None:
    """3.6 an hour is 0.001 a second: 1,000 input and 250 output tokens of 4 each are 2,000 shares."""
    prices = Prices.of(3.6, input_per_s=1000.0, output_per_s=250.0, weight=4.0)
    assert prices == Prices(per_million_input=pytest.approx(0.5), per_million_output=pytest.approx(2.0))
    spent = 1000 * 3600 / 1e6 * prices.per_million_input + 250 * 3600 / 1e6 * prices.per_million_output
    assert spent == pytest.approx(3.6), "all that is sold in an hour brings what the hour costs"


def answering(limit: float) -> tuple[list[str], Any]:
    """A server that answers 10 requests/s at its peak, in time up to `limit` requests/s."""
    labels: list[str] = []

    def measure(calls: Sequence[Call], label: str) -> Run:
        labels.append(label)
        span = calls[-1].at
        if span == 0:
            return made_run([record(0.0, 2.0) for _ in range(20)], Window(0.0, 2.0 + 1e-9), objectives=SLO)
        late = (len(calls) - 1) / span > limit
        records = [record(call.at, call.at + (5.0 if late else 0.5), prompt=30) for call in calls]
        return made_run(records, Window(0.0, span), objectives=SLO)

    return labels, measure


def even_trace(count: int) -> Trace:
    return Trace(tuple(Call(float(at), 30, 1) for at in range(count)), timed=True)


def test_the_highest_rate_in_time_counts() -> None:
    labels, measure = answering(limit=6.5)
    found = sustained(trace_shape("even", even_trace(40)), 40, 0, 512, 0.9, measure)
    assert labels == ["even, all at once", "even, 9.00/s", "even, 7.50/s", "even, 6.00/s"]
    assert (found.rate, found.good_share, found.refusal) == (pytest.approx(6.0), 1.0, None)
    assert found.input_tokens_per_s == pytest.approx(30 * 6.0, rel=0.06)
    assert found.output_tokens_per_s == pytest.approx(6.0, rel=0.06)


def test_where_no_rate_is_in_time_there_is_no_price() -> None:
    labels, measure = answering(limit=0.0)
    found = sustained(trace_shape("even", even_trace(40)), 40, 0, 512, 0.9, measure)
    assert len(labels) == 7
    assert found.refusal == "0.0 % in time, 90 % needed"


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_shapes_fit_the_context_and_come_at_their_rate(name: str) -> None:
    calls = SHAPES[name].calls(200, 0, 256)
    assert len(calls) == 200
    assert max(call.num_tokens for call in calls) <= 256
    assert SHAPES[name].arrivals(2.0).rate == 2.0
    assert len({call.prefix for call in calls}) == (4 if name == "shared-prefix" else 1)


def result(**changes: Any) -> dict[str, Any]:
    """A result of `bench serve`: 2 requests in 2 s, 30 prompt tokens and one output token each."""
    records = [record(0.0, 0.5, prompt=30), record(1.0, 1.5, prompt=30)]
    run = made_run(records, Window(0.0, 2.0), objectives=changes.pop("objectives", SLO), label="mine", **changes)
    plain: dict[str, Any] = json.loads(json.dumps(run_dict(run, {})))
    return plain


def test_a_result_is_priced_as_it_is() -> None:
    found = sustained_in(result(), 0.9)
    assert (found.name, found.rate, found.refusal) == ("mine", 1.0, None)
    assert (found.input_tokens_per_s, found.output_tokens_per_s) == (30.0, 1.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"faults": ("the client used 99 % of a core",)}, "not valid: the client used 99 % of a core"),
        ({"cautions": ("no steady state",)}, "not valid: no steady state"),
        ({"objectives": Objectives()}, "measured without objectives"),
        ({"objectives": Objectives(ttft_s=0.1)}, "0.0 % in time, 90 % needed"),
    ],
)
def test_a_result_that_sustains_nothing_has_no_price(changes: dict[str, Any], reason: str) -> None:
    assert sustained_in(result(**changes), 0.9).refusal == reason


def test_goodput_is_told_where_there_are_objectives(capsys: pytest.CaptureFixture[str]) -> None:
    records = [record(0.0, 0.5), record(1.0, 2.5)]
    for objectives, lines in ((SLO, ["goodput     0.50 requests/s, 50.0 % of them in time"]), (Objectives(), [])):
        Console(width=120).print(run_table(made_run(records, Window(0.0, 2.0), objectives=objectives)))
        told = capsys.readouterr().out.splitlines()
        assert [line.rstrip() for line in told if "goodput" in line] == lines
    summary = result(objectives=Objectives())["summary"]
    assert [summary[name] for name in ("good", "goodput_per_s", "good_share")] == [None, None, None]
    assert [result()["summary"][name] for name in ("good", "goodput_per_s", "good_share")] == [2, 1.0, 1.0]


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(BadResult, match="expected a JSON file of 'citybus bench serve'"):
        sustained_in({"format": "other"}, 0.9)
    damaged = result()
    del damaged["summary"]["sent"]
    with pytest.raises(BadResult, match="damaged: KeyError"):
        sustained_in(damaged, 0.9)


def test_the_command_prices_results(tmp_path: Path) -> None:
    """0.0036 an hour is a millionth a second: 30 + 4 x 1 shares of a million tokens are 1 / 34 each."""
    good, bad, prices = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "prices.json"
    good.write_text(json.dumps(result()), encoding="utf-8")
    bad.write_text(json.dumps(result(objectives=Objectives())), encoding="utf-8")
    command = ("bench", "cost", "--price-per-hour", "0.0036", "--result", str(good))
    assert "0.029" in citybus(*command, "--json", str(prices)).stdout
    written = json.loads(prices.read_text(encoding="utf-8"))
    assert written["shapes"][0]["prices"] == {"per_million_input": 0.029412, "per_million_output": 0.117647}
    assert "measured without objectives" in citybus(*command, "--result", str(bad), expect=1).stdout
    bad.write_text("[]", encoding="utf-8")
    assert "cannot be read" in citybus(*command, "--result", str(bad), expect=1).stderr
