"""The scheduler's loop with a fake executor in the same process, and requests to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

from prometheus_client import CollectorRegistry

from common.errors import CitybusError
from common.metrics import SchedulerMetrics
from common.resident import ResidentPage
from common.step import ExecutorInfo, Sampling, StepPlan, StepResult
from scheduler_svc.config import Config
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.request import Outcome, Request, SequenceUpdate
from scheduler_svc.executor_client import SessionLost
from scheduler_svc.journal import NoJournal
from scheduler_svc.loop import SchedulerLoop
from scheduler_svc.policies.fcfs import Fcfs
from tests.fakes import FakeExecutor


class Session:
    """A session with an executor that dies of every plan which `kills` says so of."""

    def __init__(self, executor: FakeExecutor, term: int, kills: Callable[[StepPlan], bool]) -> None:
        self.term = term
        self._executor = executor
        self._kills = kills
        self._results: asyncio.Queue[StepResult] = asyncio.Queue()

    async def send(self, plan: StepPlan) -> None:
        if self._kills(plan):
            raise SessionLost("killed")
        self._results.put_nowait(self._executor.step(plan))

    async def receive(self) -> StepResult:
        return await self._results.get()

    def cancel(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass


class ExecutorInProcess:
    address = "in process"

    def __init__(self, kills: Callable[[StepPlan], bool]) -> None:
        self._executor = FakeExecutor()
        self._kills = kills

    async def describe(self, timeout_s: float) -> ExecutorInfo:
        return self._executor.describe()

    async def open(self, epoch: bytes, *, resume: bool, timeout_s: float) -> Session:
        return Session(self._executor, self._executor.open(epoch, resume), self._kills)

    async def reconcile(self, timeout_s: float) -> list[ResidentPage]:
        return list(self._executor.resident(64))


class Ending:
    """A sink that waits for the outcome."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def push(self, update: SequenceUpdate) -> None:
        if update.outcome:
            self.outcome.set_result(update.outcome)

    def fail(self, error: CitybusError) -> None:
        self.outcome.set_exception(error)


@contextlib.asynccontextmanager
async def running_loop(
    kills: Callable[[StepPlan], bool] = lambda plan: False, told: list[bool] | None = None, **options: Any
) -> AsyncIterator[SchedulerLoop]:
    """A loop that has its executor; what it says of its health is added to `told`."""

    async def on_serving(serving: bool) -> None:
        if told is not None:
            told.append(serving)

    settings = Config(model=Path("unused"), **options)
    metrics = SchedulerMetrics(CollectorRegistry())
    client: Any = ExecutorInProcess(kills)
    loop = SchedulerLoop(
        client,
        GuardedPolicy(Fcfs()),
        settings,
        metrics,
        NoJournal(),
        on_serving=on_serving,
        on_hand_over=lambda found: None,
        on_plan=lambda plan: None,
    )
    driving = asyncio.create_task(loop.run(lambda info: []))
    try:
        await until(loop.info)
        yield loop
    finally:
        driving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await driving


def ask(loop: SchedulerLoop, prompt: tuple[int, ...] = (1,) * 33) -> asyncio.Future[Outcome]:
    """Submit a request for 17 tokens."""
    ending = Ending()
    (number,) = loop.next_sequence_ids(1)
    loop.submit(Request(number, prompt, Sampling(), arrival=0.0, max_tokens=17), [ending])
    return ending.outcome


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)
