"""The invariants are looked at in production too: by the loop itself, whenever it has become idle."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any, Self

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from common.errors import CitybusError
from common.metrics import SchedulerMetrics
from common.step import Sampling, StepPlan, StepResult
from scheduler_svc.config import Config
from scheduler_svc.core.request import Outcome, Request, SequenceUpdate
from scheduler_svc.loop import SchedulerLoop
from scheduler_svc.policies.fcfs import Fcfs
from tests.fakes import FakeExecutor

TIMEOUT_S = 30.0


class Session:
    """A session with a fake executor in this process."""

    def __init__(self, executor: FakeExecutor, term: int) -> None:
        self.term = term
        self._executor = executor
        self._results: asyncio.Queue[StepResult] = asyncio.Queue()

    async def send(self, plan: StepPlan) -> None:
        self._results.put_nowait(self._executor.step(plan))

    async def receive(self) -> StepResult:
        return await self._results.get()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass


class ExecutorInProcess:
    address = "in process"

    def __init__(self) -> None:
        self._executor = FakeExecutor()

    async def describe(self, timeout_s: float) -> Any:
        return self._executor.describe()

    async def open(self, epoch: bytes, *, resume: bool, timeout_s: float) -> Session:
        return Session(self._executor, self._executor.open(epoch, resume))


class Ending:
    """A sink that waits for the outcome."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def push(self, update: SequenceUpdate) -> None:
        if update.outcome:
            self.outcome.set_result(update.outcome)

    def fail(self, error: CitybusError) -> None:
        self.outcome.set_exception(error)


async def answer(loop: SchedulerLoop) -> Outcome:
    ending = Ending()
    loop.submit(Request(loop.next_sequence_id(), (1,) * 33, Sampling(), arrival=0.0, max_tokens=17), ending)
    return await ending.outcome


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("window", [1, 2])
async def test_a_lost_block_is_reported_when_the_loop_is_idle(window: int) -> None:
    async def on_serving(serving: bool) -> None:
        pass

    settings = Config(model=Path("unused"), window=window)
    metrics = SchedulerMetrics(CollectorRegistry())
    client: Any = ExecutorInProcess()
    loop = SchedulerLoop(client, Fcfs(), settings, metrics, on_serving=on_serving, on_plan=lambda plan: None)
    driving = asyncio.create_task(loop.run())
    with capture_logs() as lines:
        async with asyncio.timeout(TIMEOUT_S):
            await until(loop.info)
            assert (await answer(loop)).num_output_tokens == 17
            await until(lambda: loop._core is not None and not loop._core.has_work)
            await asyncio.sleep(0)
            assert not [line for line in lines if line["log_level"] == "error"]
            assert loop._core is not None
            loop._core._blocks._pool.allocate()
            assert (await answer(loop)).num_output_tokens == 17
            await until(lambda: any(line["log_level"] == "error" for line in lines))
    errors = [line for line in lines if line["log_level"] == "error"]
    assert "has lost count of its holders" in errors[0]["reason"]
    driving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await driving
