"""How long does a policy swap hold a step up? The real core with a full batch, and an executor that only counts.

    python -m bench.policy_swap

Runs the same load twice, with and without a swap before every `--every`-th step, through the built-in policies. Seats
become free in most steps, and who leaves is replaced at the end of the queue: a policy that was just set has all who
wait to put in order. The run without swaps is under fcfs. Times are CPU times of the thread: other processes do not
count. Also says whether every answer has the length it was asked for; that the tokens are the same is shown by
tests/e2e/test_policy_swap.py.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from bench.simulation import INFO, request
from scheduler_svc.alarm import Alarm
from scheduler_svc.core.guard import GuardedPolicy, PolicyChange
from scheduler_svc.core.request import Outcome
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.policies import BUILT_IN
from scheduler_svc.policy_trial import CountingExecutor

CYCLE = ("priority", "shortest_first", "fair_share", "deadline", "longest_prefix_match", "fcfs")


class Run:
    """`running` sequences in the batch and `waiting` more behind them, all the time."""

    def __init__(self, running: int, waiting: int, steps: int, every: int) -> None:
        self.info = replace(INFO, max_sequences=running, num_blocks=running * 64, max_step_tokens=2048)
        self.rolled_back: list[PolicyChange] = []
        self.guarded = GuardedPolicy(BUILT_IN["fcfs"](), time_limit=Alarm(1.0), on_change=self._note)
        self.core = Scheduler(self.info, self.guarded, term=1)
        self.executor = CountingExecutor()
        self.ended = 0
        self.wrong_lengths = 0
        self.swaps: dict[int, float] = {}
        self.took: list[float] = []
        self._ids = itertools.count()
        self._steps, self._every = steps, every
        for _ in range(running + waiting):
            self._add(0.0)

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
                    if update.outcome is not None:
                        self._replace(update.sequence_id, update.outcome, 0.01 * step)

    def _add(self, now: float) -> None:
        key = next(self._ids)
        self.core.add(request(key, now, 64, _length(key), tenant=f"t{key % 27}"))

    def _replace(self, key: int, outcome: Outcome, now: float) -> None:
        self.ended += 1
        self.wrong_lengths += outcome.num_output_tokens != _length(key)
        self._add(now)

    def _note(self, change: PolicyChange) -> None:
        if change.fault is not None:
            self.rolled_back.append(change)


def _length(key: int) -> int:
    """Tokens of an answer: 20 to 119."""
    return 20 + key * 37 % 100


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
    parser.add_argument("--steps", type=int, default=600, help="steps (default %(default)s)")
    parser.add_argument("--every", type=int, default=5, help="steps from swap to swap (default %(default)s)")
    options = parser.parse_args()
    gc.disable()  # a collection would fall on any step
    plain = Run(options.running, options.waiting, options.steps, 0)
    plain.play()
    swapped = Run(options.running, options.waiting, options.steps, options.every)
    swapped.play()
    after = [swapped.took[step] for step in swapped.swaps]
    report = {
        "running": options.running,
        "waiting": options.waiting,
        "swaps": len(after),
        "swap ms p50": _ms(statistics.median(swapped.swaps.values())),
        "swap ms max": _ms(max(swapped.swaps.values())),
        "step after a swap ms p50": _ms(statistics.median(after)),
        "step after a swap ms max": _ms(max(after)),
        "step without swaps ms p50": _ms(statistics.median(plain.took)),
        "step without swaps ms max": _ms(max(plain.took)),
        "rolled back": len(swapped.rolled_back),
        "answers": swapped.ended,
        "answers of a wrong length": swapped.wrong_lengths,
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
