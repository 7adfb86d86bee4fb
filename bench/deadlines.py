"""How many deadlines are met? Plays a bursty trace on a simulated bus, under several policies.

    python -m bench.deadlines TRACE.csv

Every request is due `--slack` times after as long as it would take alone, at least `--least` seconds after it arrives;
its time limit says so. A line of JSON for each policy: deadlines met, and tokens that were computed for nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.simulation import INFO, Simulation, StepCost, request
from citybus.bench.traces import read
from citybus.bench.workload import Call
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.request import FinishReason, Request
from scheduler_svc.policies import BUILT_IN

COST = StepCost()
BUS = replace(INFO, num_blocks=4096)


def alone_s(call: Call) -> float:
    """Seconds the request takes on an empty bus."""
    chunks = -(-call.num_prompt // BUS.max_step_tokens)
    return COST.base_s * (chunks + call.num_output) + COST.token_s * (call.num_prompt + call.num_output)


def load_of(calls: Sequence[Call], load: float, slack: float, least_s: float) -> list[Request]:
    """The trace `load` times as fast, with deadlines."""
    return [
        request(
            key,
            call.at / load,
            call.num_prompt,
            call.num_output,
            deadline=call.at / load + max(least_s, slack * alone_s(call)),
        )
        for key, call in enumerate(calls)
        if call.num_prompt + call.num_output < BUS.max_model_len
    ]


def play(requests: list[Request], policy: str) -> dict[str, object]:
    """What became of them."""
    bus = Simulation(GuardedPolicy(BUILT_IN[policy](), starvation_s=float("inf")), BUS, COST)
    bus.run(requests)
    late = {key for key, outcome in bus.outcomes.items() if outcome.reason is FinishReason.DEADLINE}
    begun = [bus.outcomes[key] for key in late if bus.outcomes[key].num_output_tokens]
    return {
        "policy": policy,
        "requests": len(requests),
        "met": len(requests) - len(late),
        "met %": round(100 * (1 - len(late) / len(requests)), 1),
        "output tokens for nothing": sum(outcome.num_output_tokens for outcome in begun),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="CSV with TIMESTAMP, ContextTokens and GeneratedTokens")
    parser.add_argument("--load", type=float, default=0.5, help="how much faster than recorded (default %(default)s)")
    parser.add_argument("--slack", type=float, default=5.0, help="times as long as alone (default %(default)s)")
    parser.add_argument("--least", type=float, default=1.0, help="least time limit, in seconds (default %(default)s)")
    parser.add_argument("--requests", type=int, default=3000, help="most requests (default %(default)s)")
    options = parser.parse_args()
    requests = load_of(read(options.trace).calls[: options.requests], options.load, options.slack, options.least)
    for policy in ("deadline", "fcfs", "shortest_first"):
        print(json.dumps(play(requests, policy)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
