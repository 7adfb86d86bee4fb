"""What does a step cost the scheduler? The real core in steady decode, and an executor that answers at once.

    python -m bench.step_cost

Two plans are in flight, answers never end, and blocks grow at different steps. Times are CPU times of the thread, so
other processes do not count; garbage collections do. `plan` is deciding, turning into a message and serialising;
`apply` is parsing the result and taking it in. What the executor needs is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bench.simulation import INFO, request
from citybus.executor.v1 import executor_pb2 as pb
from common import wire
from common.step import StepPlan
from scheduler_svc.alarm import Alarm
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.garbage import collect_seldom
from scheduler_svc.policies import BUILT_IN
from scheduler_svc.policy_trial import CountingExecutor

WINDOW = 2
WARM_UP = 8
STEP_S = 0.02


class Bus:
    """`running` sequences under `policy`, all of them decoding; prompts of 64 to 191 tokens, of 27 tenants."""

    def __init__(self, policy: str, running: int, steps: int) -> None:
        blocks_each = -(-(192 + steps + running + WARM_UP) // INFO.block_size) + 1
        info = replace(INFO, num_blocks=running * blocks_each, max_sequences=running, max_step_tokens=running + 2048)
        guarded = GuardedPolicy(BUILT_IN[policy](), time_limit=Alarm(1.0))
        self.sent = b""
        self._core = Scheduler(info, guarded, term=1, window=WINDOW)
        self._executor = CountingExecutor()
        self._plans: deque[StepPlan] = deque()
        self._now = 0.0
        for key in range(running):
            self._core.add(request(key, 0.0, 64 + key % 128, info.max_model_len, tenant=f"t{key % 27}"))
        while self._core.snapshot().waiting:
            self.step()
        for _ in range(WARM_UP):
            self.step()

    def step(self, costs: Costs | None = None) -> None:
        """Fill the window, and take one result in."""
        costs = costs or Costs()
        while self._core.num_in_flight < WINDOW:
            costs.plan_s.append(_timed(self.plan))
            costs.plan_bytes.append(len(self.sent))
        result = wire.result_to_pb(self._executor.step(self._plans.popleft())).SerializeToString()
        costs.apply_s.append(_timed(lambda: self._apply(result)))
        self._now += STEP_S

    def plan(self) -> None:
        """The next plan, as the bytes `sent`."""
        plan = self._core.schedule(self._now)
        assert plan is not None, "the window is open, and everybody has something to compute"
        self.sent = wire.plan_to_pb(plan).SerializeToString()
        self._plans.append(plan)

    def _apply(self, result: bytes) -> None:
        self._core.apply(wire.result_from_pb(pb.StepResult.FromString(result)), self._now)


@dataclass(slots=True)
class Costs:
    """Seconds and bytes of every step."""

    plan_s: list[float] = field(default_factory=list)
    apply_s: list[float] = field(default_factory=list)
    plan_bytes: list[int] = field(default_factory=list)


def measure(policy: str, running: int, steps: int) -> dict[str, float | str]:
    """The report on one policy."""
    bus, costs = Bus(policy, running, steps), Costs()
    for _ in range(steps):
        bus.step(costs)
    return {
        "policy": policy,
        "running": running,
        "plan ms p50": _ms(statistics.median(costs.plan_s)),
        "plan ms p99": _ms(_p99(costs.plan_s)),
        "apply ms p50": _ms(statistics.median(costs.apply_s)),
        "apply ms p99": _ms(_p99(costs.apply_s)),
        "plan bytes p50": round(statistics.median(costs.plan_bytes)),
        "plan bytes max": max(costs.plan_bytes),
    }


def _timed(act: Callable[[], object]) -> float:
    started = time.thread_time()
    act()
    return time.thread_time() - started


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[-1]


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--policy", action="append", help="a built-in policy; may be given again (default: fcfs, fair_share)"
    )
    parser.add_argument("--running", type=int, default=1024, help="sequences in the batch (default %(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="steps that are measured (default %(default)s)")
    options = parser.parse_args()
    collect_seldom()  # as the scheduler's process does
    for policy in options.policy or ("fcfs", "fair_share"):
        print(json.dumps(measure(policy, options.running, options.steps)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
