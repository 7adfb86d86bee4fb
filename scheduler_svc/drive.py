"""One session with an executor: results in, plans out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

from common.step import StepPlan, StepResult
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.delivery import Delivery
from scheduler_svc.executor_client import Contradiction, Session, SessionLost
from scheduler_svc.journal import Journal
from scheduler_svc.patience import Patience
from scheduler_svc.self_check import check_idle
from scheduler_svc.step_metrics import StepMetrics


class Drive:
    """Drives `session` from `core`; `wake` is set when there is something to do.

    `on_plan` is shown every plan, `on_turn` is called whenever all that could be done is done.
    """

    def __init__(
        self,
        core: Scheduler,
        session: Session,
        delivery: Delivery,
        journal: Journal,
        metrics: StepMetrics,
        patience: Patience,
        *,
        on_plan: Callable[[StepPlan], None],
        on_turn: Callable[[], None],
    ) -> None:
        self.wake = asyncio.Event()
        self._core = core
        self._session = session
        self._delivery = delivery
        self._journal = journal
        self._metrics = metrics
        self._patience = patience
        patience.start_over()
        self._on_plan = on_plan
        self._on_turn = on_turn
        self._results: deque[StepResult] = deque()
        self._stopped = False

    def stop(self) -> None:
        """Apply nothing more, and send nothing more."""
        self._stopped = True
        self.wake.set()

    async def run(self) -> None:
        """Apply, plan, send: until told to stop. Raises `SessionLost`, and `WrongResult`."""
        reader = asyncio.create_task(self._read())
        try:
            while not self._stopped:
                self.wake.clear()
                self._take_results()
                self._delivery.publish(self._core, self._core.expire(time.monotonic()))
                await self._send_plans()
                self._on_turn()
                await self._wait(reader)
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, SessionLost):
                await reader

    async def _read(self) -> None:
        try:
            while True:
                self._results.append(await self._session.receive())
                self.wake.set()
        finally:
            self.wake.set()

    def _take_results(self) -> None:
        while self._results:
            result = self._results.popleft()
            self._patience.answered()
            with self._metrics.stage("apply"):
                updates = self._core.apply(result, time.monotonic())
            with self._metrics.stage("publish"):
                self._delivery.publish(self._core, updates)
            if result.error is not None:
                raise Contradiction(f"step {result.step} failed: {result.error}")

    async def _send_plans(self) -> None:
        while not self._stopped:
            with self._metrics.stage("schedule"):
                plan = self._core.schedule(time.monotonic())
            if plan is None:
                break
            if plan.finished_ids:  # else a successor would not know that they have ended, and compute them again
                await self._journal.flushed()
            self._on_plan(plan)
            self._patience.sent()
            with self._metrics.stage("encode"):
                await self._session.send(plan)
            self._metrics.planned(plan)
        self._metrics.observe(self._core)

    async def _wait(self, reader: asyncio.Task[None]) -> None:
        """Until there is news, a deadline passes, or the executor has been silent for too long."""
        if self._stopped:
            return
        if reader.done():
            await reader
        if not self._core.has_work:
            check_idle(self._core)
        elif not self._core.num_in_flight:
            raise Contradiction("work is waiting and nothing is planned: starting over")  # invariant 8
        await self._patience.wait(self.wake, self._core.next_deadline())
