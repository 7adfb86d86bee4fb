"""What a step costs the scheduler: a report, and a bound that no clock decides."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from bench.step_cost import Bus, measure
from citybus.executor.v1 import executor_pb2 as pb


def calls_of_a_plan(policy: str, running: int) -> float:
    """Python calls that deciding and encoding a plan take, over as many steps as a block has tokens."""
    bus, count = Bus(policy, running, 40), 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    for _ in range(16):
        sys.setprofile(note)
        bus.plan()
        sys.setprofile(None)
        bus.step()
    return count / 16


@pytest.mark.parametrize(("policy", "most"), [("fcfs", 4.0), ("fair_share", 5.0)])
def test_a_decode_takes_the_scheduler_few_calls(policy: str, most: float) -> None:
    """Who decodes without a new block costs a look and a row that is there already: 1,024 such rows take 1 ms."""
    fewer, more = (calls_of_a_plan(policy, running) for running in (64, 128))
    assert (more - fewer) / 64 <= most


def test_a_report_of_a_small_bus() -> None:
    found = measure("fcfs", 32, 40)
    assert (found["policy"], found["running"]) == ("fcfs", 32)
    for what in ("plan ms", "apply ms"):
        assert 0 < float(found[f"{what} p50"]) <= float(found[f"{what} p99"])
    assert 32 < int(found["plan bytes p50"]) <= int(found["plan bytes max"]) < 32 * 32


def test_plans_are_those_of_a_steady_decode() -> None:
    """Everybody has one row in every plan, and a block every 16th time."""
    bus, grown = Bus("fcfs", 48, 40), 0
    for _ in range(16):
        bus.step()
        plan = pb.StepPlan.FromString(bus.sent)
        assert list(plan.ids) == list(range(48))
        assert not plan.num_tokens and not plan.new_sequences and not plan.finished_ids
        grown += len(plan.grown_rows)
    assert grown == 48
