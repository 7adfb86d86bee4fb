"""What are continuous batching and paging worth? Plays a trace on a simulated bus, under three policies.

    python -m bench.batching TRACE

All requests are sent at once. A step takes `--base-ms`, and `--token-ms` for each token it computes, as where weights
are read once a step; kernels, machine and load do not count, and the figures come out the same everywhere. Static
batching and contiguous reservation keep a place for the longest reply of the trace. A line of JSON for each policy.
`citybus bench compare` measures the same on a server.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.simulation import INFO, Simulation, StepCost, request
from citybus.bench.distribution import Distribution
from citybus.bench.traces import read
from citybus.bench.workload import Call, fitted
from common.step import ExecutorInfo
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.policy import Policy
from scheduler_svc.core.reservation import reservation
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.policies import BUILT_IN


class Watched(Simulation):
    """A simulation that notes, at every step, what memory holds: tokens, and slots that nobody else gets."""

    def __init__(self, policy: GuardedPolicy, info: ExecutorInfo, cost: StepCost) -> None:
        super().__init__(policy, info, cost)
        self.tokens_held, self.slots, self.seats, self.steps = 0, 0, 0, 0

    def _step(self, core: Scheduler) -> None:
        super()._step(core)
        state = core.snapshot()
        self.tokens_held += state.tokens_held
        self.slots += reservation(core).num_blocks * self.info.block_size
        self.seats += state.running
        self.steps += 1


def play(calls: Sequence[Call], policy: Policy, num_blocks: int, cost: StepCost) -> dict[str, float]:
    """What became of them."""
    info = replace(INFO, num_blocks=num_blocks, max_sequences=256)
    bus = Watched(GuardedPolicy(policy, starvation_s=float("inf")), info, cost)
    bus.run(request(key, 0.0, call.num_prompt, call.num_output) for key, call in enumerate(calls))
    latency = Distribution.of([outcome.total_s for outcome in bus.outcomes.values()])
    assert latency is not None
    return {
        "output tokens/s": round(sum(call.num_output for call in calls) / bus.now, 1),
        "latency p50 s": round(latency.p50, 2),
        "latency p99 s": round(latency.p99, 2),
        "KV memory with tokens %": round(100 * bus.tokens_held / bus.slots, 1),
        "running": round(bus.seats / bus.steps, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="any of those of 'citybus bench serve --trace'")
    parser.add_argument("--context", type=int, default=1024, help="the longest, once scaled (default %(default)s)")
    parser.add_argument("--blocks", type=int, default=512, help="blocks of 16 tokens in the pool (default %(default)s)")
    parser.add_argument("--requests", type=int, default=1000, help="most requests (default %(default)s)")
    parser.add_argument("--base-ms", type=float, default=10.0, help="of a step (default %(default)s)")
    parser.add_argument("--token-ms", type=float, default=0.1, help="of a token (default %(default)s)")
    options = parser.parse_args()
    calls = fitted(read(options.trace).calls[: options.requests], options.context)
    cost = StepCost(options.base_ms / 1000, options.token_ms / 1000)
    longest = max(call.num_output for call in calls)
    for name in ("static_batch", "contiguous", "fcfs"):
        kind = BUILT_IN[name]
        policy = kind() if name == "fcfs" else kind(kind.Parameters(longest_reply=longest))
        print(json.dumps({"policy": name, **play(calls, policy, options.blocks, cost)}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
