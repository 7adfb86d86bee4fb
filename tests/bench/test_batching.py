"""What continuous batching and paging are worth where a step costs mostly the same: exact, on a simulated bus."""

from __future__ import annotations

import random

from bench.batching import play
from bench.simulation import StepCost
from citybus.bench.workload import Call
from scheduler_svc.policies.contiguous import Contiguous
from scheduler_svc.policies.fcfs import Fcfs
from scheduler_svc.policies.static_batch import StaticBatch


def test_continuous_and_paged_is_worth_four_times_static_batching() -> None:
    """Replies of 1 to 512 tokens, most of them short, in a pool of eight times the longest request."""
    chance = random.Random(1)
    calls = [Call(0.0, chance.randint(16, 128), min(512, 1 + int(chance.expovariate(1 / 100)))) for _ in range(120)]
    longest = max(call.num_output for call in calls)
    cost = StepCost(base_s=0.01, token_s=0.0001)
    static = play(calls, StaticBatch(StaticBatch.Parameters(longest)), 320, cost)
    contiguous = play(calls, Contiguous(Contiguous.Parameters(longest)), 320, cost)
    paged = play(calls, Fcfs(), 320, cost)
    speeds = [found["output tokens/s"] for found in (static, contiguous, paged)]
    assert speeds == sorted(speeds)
    assert speeds[2] >= 4 * speeds[0]
    assert paged["latency p50 s"] < contiguous["latency p50 s"] < static["latency p50 s"]
    assert paged["latency p99 s"] < contiguous["latency p99 s"] < static["latency p99 s"]
    shares = [found["KV memory with tokens %"] for found in (static, contiguous, paged)]
    assert shares == sorted(shares)
    assert shares[2] >= 90


def test_one_request_takes_its_steps_and_no_more() -> None:
    """20 prompt tokens and 3 replies are 3 steps: 22 tokens computed, at 10 ms a step and 1 ms a token."""
    found = play([Call(0.0, 20, 3)], Fcfs(), 64, StepCost(base_s=0.01, token_s=0.001))
    assert found["latency p50 s"] == found["latency p99 s"] == 0.05
    assert found["output tokens/s"] == round(3 / 0.052, 1)
