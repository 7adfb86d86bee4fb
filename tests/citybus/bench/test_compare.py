"""Comparing modes: who runs when, what is restored, and how figures are put together."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from citybus.bench.compare import Comparison, Mode, Spread, Trial, compare, default_modes
from citybus.bench.compare_report import MEASURES, comparison_dict, comparison_table, curves, panels
from citybus.bench.measures import Window
from citybus.bench.policies import LivePolicy, Policy
from citybus.bench.run import Run
from citybus.bench.workload import Call
from tests.citybus.bench.runs import made_run
from tests.citybus.bench.timelines import reading, record

A, B = Mode("old", Policy("static_batch")), Mode("new", Policy("fcfs"))
CALLS = [Call(0.0, 4, size) for size in (3, 9, 5)]


class Recorded(LivePolicy):
    """The policy of a scheduler that is none; `log` says what was asked of it."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.now = log, Policy("priority", {"ageing_s": "3.0"})

    def get(self) -> Policy:
        return self.now

    def set(self, policy: Policy) -> None:
        self.log.append(f"set {policy.name} {dict(policy.parameters)}")
        self.now = policy


def run_of(tokens: int, seconds: float, label: str = "") -> Run:
    """An answer of so many tokens in so many seconds, half of whose slots hold tokens."""
    times = [seconds * (index + 1) / tokens for index in range(tokens)]
    state = reading(0.0, 1, tokens_held=8, slots_reserved=16, seats_reserved=2)
    return made_run([record(0.0, *times)], Window(0.0, seconds + 1e-9), label=label, readings=[state])


def test_every_mode_runs_in_every_round_in_turned_order_and_the_policy_comes_back() -> None:
    log: list[str] = []

    def measure(calls: Sequence[Call], label: str) -> Run:
        log.append(f"{label}: {len(calls)} until {max(call.at for call in calls):.1f}")
        return run_of(2, 1.0, label)

    found = compare(Recorded(log), CALLS, [A, B], 2, [5.0], seed=0, measure=measure)
    assert [(trial.mode.label, trial.round, trial.rate) for trial in found.trials] == [
        ("old", 0, None),
        ("new", 0, None),
        ("old", 0, 5.0),
        ("new", 0, 5.0),
        ("new", 1, None),
        ("old", 1, None),
        ("new", 1, 5.0),
        ("old", 1, 5.0),
    ]
    assert log[:3] == ["warming up: 3 until 0.0", "set static_batch {}", "old, all at once, round 1 of 2: 3 until 0.0"]
    assert log[-1] == "set priority {'ageing_s': '3.0'}"
    assert found.faults == ()


@pytest.mark.parametrize("ending", [KeyboardInterrupt, ConnectionError])
def test_the_policy_comes_back_however_it_ends(ending: type[BaseException]) -> None:
    log: list[str] = []

    def measure(calls: Sequence[Call], label: str) -> Run:
        if "new" in label:
            raise ending
        return run_of(2, 1.0)

    with pytest.raises(ending):
        compare(Recorded(log), CALLS, [A, B], 1, [], seed=0, measure=measure)
    assert log == ["set static_batch {}", "set fcfs {}", "set priority {'ageing_s': '3.0'}"]


def test_a_policy_that_was_changed_meanwhile_is_a_fault() -> None:
    live = Recorded([])

    def measure(calls: Sequence[Call], label: str) -> Run:
        live.now = Policy("deadline")
        return run_of(2, 1.0, label)

    (fault,) = compare(live, CALLS, [A], 1, [], seed=0, measure=measure).faults
    assert fault.startswith("old, all at once, round 1 of 1: deadline decided at the end")


def comparison() -> Comparison:
    """Two rounds; the new mode is 4 and 6 times as fast."""
    speeds = {"old": ((10, 10.0), (20, 10.0)), "new": ((40, 10.0), (120, 10.0))}
    trials = [Trial(mode, turn, None, run_of(*speeds[mode.label][turn])) for turn in range(2) for mode in (A, B)] + [
        Trial(mode, 0, 2.0, run_of(10, 1.0)) for mode in (A, B)
    ]
    return Comparison((A, B), tuple(trials))


def test_ratios_are_taken_round_by_round() -> None:
    found = comparison()
    speed = MEASURES[0].of
    assert found.values(A, speed) == pytest.approx([1.0, 2.0])
    assert found.ratios(B, speed) == pytest.approx([4.0, 6.0])
    assert Spread.of(found.ratios(B, speed)) == Spread(pytest.approx(5.0), pytest.approx(4.0), pytest.approx(6.0))
    assert Spread.of([]) is None


def test_the_table_has_medians_least_most_and_ratios() -> None:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as written:
        console.print(comparison_table(comparison()))
    text = written.get()
    assert "1.5 (1.0 - 2.0)" in text
    assert "8.0 (4.0 - 12.0)" in text
    assert "x 5.00 (4.00 - 6.00)" in text
    assert "50.0 (50.0 - 50.0)" in text
    assert "100 (100 - 100)" in text, "normalised latency at 2 requests/s, in ms per token"


def test_json_and_panels_have_every_mode() -> None:
    found = comparison()
    plain: dict[str, Any] = comparison_dict(found, {"seed": 0})
    assert (plain["valid"], plain["workload"]) == (True, {"seed": 0})
    assert plain["ratios"]["output tokens/s"] == {"new": pytest.approx([4.0, 6.0])}
    assert [(trial["mode"], trial["rate"]) for trial in plain["trials"]][-1] == ("new", 2.0)
    assert panels(found)["seats idle, %"] == {"old": [50.0, 50.0], "new": [50.0, 50.0]}
    assert curves(found) == {"old": [(2.0, pytest.approx(100.0))], "new": [(2.0, pytest.approx(100.0))]}


def test_modes_are_policies_with_parameters() -> None:
    assert Mode.parse("fcfs") == Mode("fcfs", Policy("fcfs"))
    text = "fair_share:weights=a=1,b=2;output_cost=3"
    assert Mode.parse(text) == Mode(text, Policy("fair_share", {"weights": "a=1,b=2", "output_cost": "3"}))
    for wrong in ("", ":a=1", "fcfs:a"):
        with pytest.raises(ValueError, match="is no mode"):
            Mode.parse(wrong)
    assert [mode.policy for mode in default_modes(CALLS)] == [
        Policy("static_batch", {"longest_reply": "9"}),
        Policy("contiguous", {"longest_reply": "9"}),
        Policy("fcfs"),
    ]
