"""Tries a policy before it may decide anything: a synthetic load on the real core, and an executor that only counts.

`python -m scheduler_svc.policy_trial FILE` tries every policy of a file, in a process of its own, so that a file that
loops or ends its process hurts nobody. It prints what is wrong, or `PASSED`, as its last line, and ends when its
standard input does.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

from common.step import ExecutorInfo, SampledToken, Sampling, StepPlan, StepResult
from scheduler_svc.alarm import Alarm
from scheduler_svc.core.guard import GuardedPolicy, PolicyChange
from scheduler_svc.core.policy import Policy
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.policy_files import BadPolicyFile, load

DECISION_S = 0.05
"""Longest a decision may take, in seconds."""

PASSED = "the trial is passed"

STARVATION_S = 60.0
_STEP_S = 0.5
_MAX_STEPS = 5_000
_INFO = ExecutorInfo(
    epoch=b"policy-trial-001",
    model="trial",
    vocab_size=256,
    max_model_len=256,
    block_size=16,
    num_blocks=24,
    max_sequences=6,
    max_step_tokens=64,
)


class CountingExecutor:
    """Knows how many tokens each sequence has, and draws token 0 wherever one is due."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._computed: dict[int, int] = {}

    def step(self, plan: StepPlan) -> StepResult:
        """The result of a plan."""
        for key in (*plan.finished_ids, *plan.preempted_ids):
            del self._known[key], self._computed[key]
        for new in plan.new_sequences:
            self._known[new.sequence_id] = len(new.token_ids)
            self._computed[new.sequence_id] = new.num_computed_tokens
        drawn = tuple(SampledToken(key, 0) for key, count in rows(plan) if self._draws(key, count))
        return StepResult(plan.step, drawn)

    def _draws(self, key: int, count: int) -> bool:
        self._computed[key] += count
        if self._computed[key] < self._known[key]:
            return False
        self._known[key] += 1
        return True


def rows(plan: StepPlan) -> list[tuple[int, int]]:
    """Who computes how many tokens in a plan."""
    new = [(row.sequence_id, row.num_tokens) for row in plan.new_sequences]
    return new + [(row.sequence_id, row.num_tokens) for row in plan.scheduled]


def fault_of(policy: Policy, time_limit: AbstractContextManager[object] | None) -> str | None:
    """What `policy` does wrong under a mixed load that fills the seats and the pool; None where nothing."""
    changes: list[PolicyChange] = []
    guarded = GuardedPolicy(Policy(), time_limit=time_limit, starvation_s=STARVATION_S, on_change=changes.append)
    try:
        guarded.set(policy)
        policy.import_state(policy.export_state())
    except Exception as error:
        return f"export_state and import_state: {type(error).__name__}: {error}"
    core, executor = Scheduler(_INFO, guarded, term=1), CountingExecutor()
    load = _load()
    for step in range(_MAX_STEPS):
        now = step * _STEP_S
        while load and load[-1].arrival <= now:
            core.add(load.pop())
        core.expire(now)
        plans = []
        while (plan := core.schedule(now)) is not None:
            plans.append(plan)
        for plan in plans:
            core.apply(executor.step(plan), now)
        fault = next((change.fault for change in changes if change.fault), guarded.fault)
        if fault:
            return fault
        if not load and not core.has_work:
            return None
    return f"the load was not done after {_MAX_STEPS} steps"


def _load() -> list[Request]:
    """Sixty requests, the last to arrive first: bursts, three tenants, four priorities, and a few time limits."""
    return [
        Request(
            sequence_id=key,
            prompt=tuple(range(1 + (key * 37) % 120)),
            sampling=Sampling(temperature=0.0),
            arrival=float(3 * (key // 8)),
            max_tokens=1 + (key * 13) % 60,
            priority=key % 4,
            tenant=f"t{key % 3}",
            deadline=3.0 * (key // 8) + 500.0 if key % 5 == 0 else None,
        )
        for key in reversed(range(60))
    ]


def _end_with_the_parent() -> None:
    """The other end of the standard input is held by the process that wants to know, and closes when that dies."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main(path: str) -> int:
    """Try the policies of a file. Returns the exit status: 1 where one fails."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    time_limit = Alarm(DECISION_S)
    try:
        for policy in load(Path(path)):
            fault = fault_of(policy(), time_limit)
            if fault is not None:
                print(f"policy {policy.name} fails its trial: {fault}")
                return 1
    except BadPolicyFile as error:
        print(error)
        return 1
    print(PASSED)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
