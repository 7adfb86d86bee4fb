"""The plans of recorded runs come out again byte for byte."""

from __future__ import annotations

import json

import pytest

from tests.scheduler.replay import GOLDEN, SCENARIOS, Event, lines, read, record, replay


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_recorded_events_give_the_recorded_plans(name: str) -> None:
    recorded = read(name)
    assert sum(event.get("plan") is not None for event in recorded) >= 10
    for number, (then, now) in enumerate(zip(recorded, replayed(recorded), strict=True)):
        assert now == then, f"event {number} of {name}; if that is meant: python -m tests.scheduler.replay"


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_scenario_is_still_what_was_recorded(name: str) -> None:
    assert list(lines(record(name))) == (GOLDEN / f"{name}.jsonl").read_text().splitlines()


def test_every_recording_belongs_to_a_scenario() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(SCENARIOS)


def test_another_policy_gives_other_plans() -> None:
    """Otherwise the comparison would prove nothing."""
    recorded = read("scarce_blocks")
    first = next(number for number, event in enumerate(recorded) if event["event"] == "schedule")
    now = replayed([{**recorded[0], "policy": "fcfs"}, *recorded[1 : first + 1]])
    assert now[1:first] == recorded[1:first]
    assert now[first]["plan"] != recorded[first]["plan"]


def replayed(recorded: list[Event]) -> list[Event]:
    return [json.loads(line) for line in lines(replay(recorded))]
