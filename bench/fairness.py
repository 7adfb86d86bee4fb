"""Is service fair between tenants? Plays a trace of many tenants on a simulated bus, under two policies.

    python -m bench.fairness TRACE.jsonl

For every pair of tenants and every stretch of time in which both always had a request waiting, the difference of the
service they got (prompt tokens + 2 x output tokens) is compared with the bound of the VTC paper (Sheng et al., OSDI
2024, theorem 4.4): 2 max(longest prompt, 2 x tokens the pool holds). A line of JSON for each policy.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.simulation import INFO, Simulation, StepCost, request
from citybus.bench.traces import read
from citybus.bench.workload import Call
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.policies import BUILT_IN

OUTPUT_COST = 2.0
Spans = dict[str, list[tuple[float, float]]]
Service = dict[str, list[tuple[float, float]]]


def play(calls: Sequence[Call], policy: str, num_blocks: int, load: float) -> Simulation:
    """The trace `load` times as fast as it was."""
    bus = Simulation(
        GuardedPolicy(BUILT_IN[policy](), starvation_s=float("inf")),
        replace(INFO, num_blocks=num_blocks),
        StepCost(),
    )
    bus.run(
        request(key, call.at / load, call.num_prompt, call.num_output, tenant=call.tenant)
        for key, call in enumerate(calls)
    )
    return bus


def backlogged(bus: Simulation) -> Spans:
    """When each tenant had somebody waiting for a seat, as a list of stretches (start, end)."""
    waits: Spans = defaultdict(list)
    for key, outcome in bus.outcomes.items():
        asked = bus.requests[key]
        waits[asked.tenant].append((asked.arrival, asked.arrival + (outcome.queued_s or 0.0)))
    return {tenant: _merged(sorted(spans)) for tenant, spans in waits.items()}


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def widest_gap(bus: Simulation) -> tuple[float, str, str, float]:
    """(largest difference in service of two tenants while both waited, who, who, for how many seconds)."""
    service: Service = defaultdict(list)
    for served in bus.served:
        service[served.tenant].append((served.time, served.num_prompt_tokens + OUTPUT_COST * served.num_output_tokens))
    spans = backlogged(bus)
    worst = (0.0, "", "", 0.0)
    for one, other in itertools.combinations(sorted(spans), 2):
        for start, end in _common(spans[one], spans[other]):
            gap = _gap(service[one], service[other], start, end)
            worst = max(worst, (gap, one, other, end - start))
    return worst


def _common(left: list[tuple[float, float]], right: list[tuple[float, float]]) -> list[tuple[float, float]]:
    pairs = ((max(a, c), min(b, d)) for a, b in left for c, d in right)
    return [(start, end) for start, end in pairs if end > start]


def _gap(one: list[tuple[float, float]], other: list[tuple[float, float]], start: float, end: float) -> float:
    """The largest difference over any part of the stretch: range of the difference of the sums so far."""
    steps = [(time, cost) for time, cost in one if start <= time < end]
    steps += [(time, -cost) for time, cost in other if start <= time < end]
    sums = list(itertools.accumulate((cost for _, cost in sorted(steps)), initial=0.0))
    return max(sums) - min(sums)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="JSON lines with t_s, tenant, input_tokens and output_tokens")
    parser.add_argument("--load", type=float, default=4.0, help="how much faster than recorded (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=512, help="blocks of 16 tokens in the pool (default %(default)s)")
    parser.add_argument("--requests", type=int, default=1500, help="most requests (default %(default)s)")
    options = parser.parse_args()
    calls = read(options.trace).calls[: options.requests]
    longest = max(call.num_prompt for call in calls)
    bound = 2 * max(float(longest), OUTPUT_COST * options.blocks * INFO.block_size)
    for policy in ("fair_share", "fcfs"):
        bus = play(calls, policy, options.blocks, options.load)
        gap, one, other, seconds = widest_gap(bus)
        report = {
            "policy": policy,
            "tenants": len({call.tenant for call in calls}),
            "widest gap": round(gap),
            "bound": round(bound),
            "within": gap <= bound,
            "between": [one, other],
            "both waited s": round(seconds, 1),
            "simulated s": round(bus.now, 1),
        }
        print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
