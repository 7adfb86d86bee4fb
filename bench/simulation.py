"""A bus on a simulated clock: the real scheduler core, and an executor that only takes its time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from common.step import ExecutorInfo, Sampling, StepPlan, StepResult
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.request import Outcome, Request, SequenceUpdate
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.policy_trial import CountingExecutor, rows

INFO = ExecutorInfo(
    epoch=b"simulated-000001",
    model="simulated",
    vocab_size=32_000,
    max_model_len=8192,
    block_size=16,
    num_blocks=2048,
    max_sequences=32,
    max_step_tokens=512,
)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds a step takes: `base_s`, and `token_s` for each token it computes."""

    base_s: float = 0.01
    token_s: float = 0.0001

    def of(self, plan: StepPlan) -> float:
        return self.base_s + self.token_s * plan.num_tokens


class Steps(Protocol):
    """The part of an executor that computes."""

    def step(self, plan: StepPlan) -> StepResult:
        """The result of a plan."""


@dataclass(frozen=True, slots=True)
class Served:
    """What was computed (prompt tokens) or drawn (output tokens) for `tenant` at `time`."""

    time: float
    tenant: str
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(slots=True)
class Simulation:
    """Plays requests at their arrival; `outcomes` and `served` tell what became of them."""

    policy: GuardedPolicy
    info: ExecutorInfo = INFO
    cost: StepCost = StepCost()
    executor: Steps = field(default_factory=CountingExecutor)
    window: int = 2
    now: float = 0.0
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    served: list[Served] = field(default_factory=list)
    requests: dict[int, Request] = field(default_factory=dict)
    core: Scheduler | None = None
    _plans: list[StepPlan] = field(default_factory=list)

    def run(self, requests: Iterable[Request], until: float = float("inf")) -> None:
        """Until all are done, or the time has come."""
        core = self.core = self.core or Scheduler(self.info, self.policy, term=1, window=self.window)
        coming = sorted(requests, key=lambda request: request.arrival, reverse=True)
        while (coming or core.has_work) and self.now < until:
            if not core.has_work:
                self.now = max(self.now, coming[-1].arrival)
            while coming and coming[-1].arrival <= self.now:
                request = coming.pop()
                self.requests[request.sequence_id] = request
                core.add(request)
            self._step(core)

    def _step(self, core: Scheduler) -> None:
        self._hear(core.expire(self.now))
        while (plan := core.schedule(self.now)) is not None:
            self._plans.append(plan)
            self._count_prompts(plan)
        if not self._plans:
            return
        plan = self._plans.pop(0)
        self.now += self.cost.of(plan)
        self._hear(core.apply(self.executor.step(plan), self.now))

    def _count_prompts(self, plan: StepPlan) -> None:
        for key, count in rows(plan):
            if count > 1:
                self.served.append(Served(self.now, self.requests[key].tenant, count, 0))

    def _hear(self, updates: Iterable[SequenceUpdate]) -> None:
        for update in updates:
            sequence_id = update.sequence_id
            count = len(update.token_ids)
            if count:
                self.served.append(Served(self.now, self.requests[sequence_id].tenant, 0, count))
            if update.outcome is not None:
                self.outcomes[sequence_id] = update.outcome


def request(
    sequence_id: int,
    arrival: float,
    num_prompt: int,
    num_output: int,
    *,
    tenant: str = "",
    deadline: float | None = None,
) -> Request:
    """A request whose prompt shares nothing with others: its beginning is its own."""
    start = 1 + sequence_id % 30_000
    prompt = (start, sequence_id // 30_000, *([2] * max(0, num_prompt - 2)))[:num_prompt]
    greedy = Sampling(temperature=0.0)
    return Request(
        sequence_id, prompt, greedy, arrival, max_tokens=max(1, num_output), tenant=tenant, deadline=deadline
    )
