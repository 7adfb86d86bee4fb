"""How long does a policy swap hold a step up? The real core with many running, and an executor that only counts.

    python -m bench.policy_swap

Runs the same load twice, with and without a swap before every `--every`-th step, through the built-in policies. The
stall of a swap is its own time, and what the next step takes more than the same step of the run without swaps.
Times are CPU times of the thread: other processes do not count. Also prints whether the tokens are the same.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bench.simulation import INFO, request
from scheduler_svc.alarm import Alarm
from scheduler_svc.core.guard import GuardedPolicy, PolicyChange
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.policies import BUILT_IN
from scheduler_svc.policy_trial import CountingExecutor

CYCLE = ("priority", "shortest_first", "fair_share", "deadline", "longest_prefix_match", "fcfs")


class Run:
    """`running` sequences in the batch and `waiting` more behind them."""

    def __init__(self, running: int, waiting: int, steps: int, every: int) -> None:
        self.info = replace(INFO, max_sequences=running, num_blocks=running * 64, max_step_tokens=2048)
        self.rolled_back: list[PolicyChange] = []
        self.guarded = GuardedPolicy(BUILT_IN["fcfs"](), time_limit=Alarm(1.0), on_change=self._note)
        self.core = Scheduler(self.info, self.guarded, term=1)
        self.executor = CountingExecutor()
        for key in range(running + waiting):
            self.core.add(request(key, 0.0, 64, 4 * steps, tenant=f"t{key % 27}"))
        self.tokens: dict[int, int] = {}
        self.swaps: dict[int, float] = {}
        self.took: list[float] = []
        self._steps, self._every = steps, every

    def _note(self, change: PolicyChange) -> None:
        if change.fault is not None:
            self.rolled_back.append(change)

    def play(self) -> None:
        """All the steps; times are in seconds."""
        for step in range(self._steps):
            if self._every > 0 and step % self._every == self._every - 1:
                policy = BUILT_IN[CYCLE[step // self._every % len(CYCLE)]]()
                self.swaps[step] = _timed(partial(self.guarded.set, policy))
            started = time.thread_time()
            plan = self.core.schedule(0.01 * step)
            self.took.append(time.thread_time() - started)
            if plan is not None:
                for update in self.core.apply(self.executor.step(plan), 0.01 * step):
                    self.tokens[update.sequence_id] = update.first_index + len(update.token_ids)


def _timed(act: Callable[[], object]) -> float:
    started = time.thread_time()
    act()
    return time.thread_time() - started


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256, help="sequences in the batch (default %(default)s)")
    parser.add_argument("--waiting", type=int, default=256, help="sequences behind them (default %(default)s)")
    parser.add_argument("--steps", type=int, default=300, help="steps (default %(default)s)")
    parser.add_argument("--every", type=int, default=5, help="steps from swap to swap (default %(default)s)")
    options = parser.parse_args()
    gc.disable()  # a collection would fall on any step
    plain = Run(options.running, options.waiting, options.steps, 0)
    plain.play()
    swapped = Run(options.running, options.waiting, options.steps, options.every)
    swapped.play()
    stalls = [took + swapped.took[step] - plain.took[step] for step, took in swapped.swaps.items()]
    report = {
        "running": options.running,
        "waiting": options.waiting,
        "swaps": len(stalls),
        "swap ms max": _ms(max(swapped.swaps.values())),
        "stall ms p50": _ms(statistics.median(stalls)),
        "stall ms max": _ms(max(stalls)),
        "step ms p50": _ms(statistics.median(plain.took)),
        "step ms max": _ms(max(plain.took)),
        "rolled back": len(swapped.rolled_back),
        "same tokens": plain.tokens == swapped.tokens,
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
