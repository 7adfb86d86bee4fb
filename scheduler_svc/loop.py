"""The only clock of the scheduler: drives the core and the executor, and hands out what becomes of each request."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from common.errors import CitybusError, InvalidRequest, Unavailable
from common.metrics import SchedulerMetrics
from common.step import ExecutorInfo, StepPlan, StepResult
from scheduler_svc.config import Config
from scheduler_svc.core.policy import Policy
from scheduler_svc.core.readings import Snapshot, Totals
from scheduler_svc.core.request import NeverFits, Request
from scheduler_svc.core.scheduler import Scheduler, WrongResult
from scheduler_svc.delivery import Delivery
from scheduler_svc.executor_client import ExecutorClient, Fenced, Session, SessionLost
from scheduler_svc.output_stream import OutputSink
from scheduler_svc.patience import Patience
from scheduler_svc.self_check import check_idle
from scheduler_svc.step_metrics import StepMetrics

RETRY_S = 0.2
"""Between two attempts to reach the executor."""

log = structlog.get_logger()


class SchedulerLoop:
    """Owns the core. Everything happens in one event loop, so nothing is locked.

    `on_serving` is told whenever the scheduler starts or stops to drive an executor; `on_plan` is shown every plan.
    """

    def __init__(
        self,
        client: ExecutorClient,
        policy: Policy,
        settings: Config,
        metrics: SchedulerMetrics,
        *,
        on_serving: Callable[[bool], Awaitable[None]],
        on_plan: Callable[[StepPlan], None],
    ) -> None:
        self._client = client
        self._settings = settings
        self._metrics = StepMetrics(metrics)
        self._on_serving = on_serving
        self._on_plan = on_plan
        self._policy = policy
        self._core: Scheduler | None = None
        self._info: ExecutorInfo | None = None
        self._delivery = Delivery()
        self._ids = itertools.count(1)
        self._wake = asyncio.Event()
        self._results: deque[StepResult] = deque()
        self._patience = Patience(settings.step_timeout, settings.executor_timeout)
        self._draining = False
        self._idle = asyncio.Event()

    # What the front end calls

    @property
    def policy(self) -> str:
        """Name of the policy in force."""
        return self._policy.name

    @property
    def draining(self) -> bool:
        """Whether new requests are refused for good."""
        return self._draining

    def info(self) -> ExecutorInfo | None:
        """Facts of the executor that is driven now; None while there is none."""
        return self._info

    def next_sequence_id(self) -> int:
        """An id for a new sequence, larger than all before."""
        return next(self._ids)

    def submit(self, request: Request, sink: OutputSink) -> None:
        """Accept a request; its news go to `sink`, and one outcome or error at last.

        Raises `InvalidRequest` where it can never fit, and `Unavailable` where it is not the time.
        """
        if self._draining:
            raise Unavailable("this server is shutting down: send the request to another one")
        if self._core is None or self._info is None:
            raise Unavailable("no executor is connected: try again in a moment", retry_after_s=1.0)
        try:
            self._core.add(request)
        except NeverFits as error:
            raise InvalidRequest(str(error)) from error
        self._delivery.add(request.sequence_id, sink)
        self._wake.set()

    def cancel(self, sequence_id: int) -> None:
        """End a request. Nothing happens where it has ended already."""
        if self._core is not None:
            self._delivery.publish(self._core, self._core.cancel(sequence_id, time.monotonic()))
            self._wake.set()

    def snapshot(self) -> tuple[Snapshot, Totals] | None:
        """One reading of the core; None before the first executor is connected."""
        return None if self._core is None else (self._core.snapshot(), self._core.totals)

    async def drain(self) -> None:
        """Refuse what is new and wait for what is accepted; where that is cancelled, end the rest with an error."""
        self._draining = True
        self._wake.set()
        try:
            await self._idle.wait()
        except asyncio.CancelledError:
            self._abandon(Unavailable("the server was shut down before the request ended: send it to another one"))
            raise

    # The loop itself

    async def run(self) -> None:
        """Drive executors, one session after the other, until cancelled.

        Raises `Fenced` where another scheduler has taken the executor over.
        """
        while True:
            try:
                session, info = await self._connect()
                async with session:
                    self._start_over(info, session.term)
                    await self._on_serving(True)
                    await self._drive(session)
            except Fenced:
                self._abandon(Unavailable("another scheduler has taken over: send the request to it"))
                raise
            except SessionLost as error:
                log.warning("executor lost", reason=str(error))
            except WrongResult as error:
                log.error("executor contradicts its plan", reason=str(error))
            finally:
                self._info = None
                self._metrics.disconnected()
            self._pass_time()
            await asyncio.sleep(RETRY_S)

    async def _connect(self) -> tuple[Session, ExecutorInfo]:
        """Reach the executor, however long it takes; time limits pass and, in the end, patience. Raises `Fenced`."""
        serving = True
        while True:
            try:
                info = await self._client.describe(timeout_s=2.0)
                return await self._client.open(info.epoch, resume=False, timeout_s=2.0), info
            except SessionLost as error:
                if isinstance(error, Fenced):
                    raise
                if serving:
                    log.info("waiting for the executor", address=self._client.address, reason=str(error))
                    await self._on_serving(False)
                    serving = False
            self._pass_time()
            await asyncio.sleep(RETRY_S)

    def _pass_time(self) -> None:
        if self._core is not None:
            self._delivery.publish(self._core, self._core.expire(time.monotonic()))
        if self._patience.lost():
            self._abandon(Unavailable("the executor is away: try again later", retry_after_s=5.0))
        self._note_idle()

    def _start_over(self, info: ExecutorInfo, term: int) -> None:
        """Begin a session with an executor that holds nothing of ours."""
        self._results.clear()
        self._patience.start_over()
        if self._core is None:
            self._core = Scheduler(info, self._policy, term=term, window=self._settings.window)
        else:
            self._delivery.publish(self._core, self._core.reset(info, term, time.monotonic()))
        self._info = info
        log.info("executor connected", model=info.model, term=term, num_blocks=info.num_blocks)

    async def _drive(self, session: Session) -> None:
        """Apply, plan, send: until the session is lost."""
        assert self._core is not None
        reader = asyncio.create_task(self._read(session))
        try:
            while True:
                self._wake.clear()
                self._take_results(self._core)
                self._delivery.publish(self._core, self._core.expire(time.monotonic()))
                await self._send_plans(self._core, session)
                self._note_idle()
                await self._wait(self._core, reader)
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, SessionLost):
                await reader

    async def _read(self, session: Session) -> None:
        try:
            while True:
                self._results.append(await session.receive())
                self._wake.set()
        finally:
            self._wake.set()

    def _take_results(self, core: Scheduler) -> None:
        while self._results:
            result = self._results.popleft()
            self._patience.answered()
            with self._metrics.stage("apply"):
                updates = core.apply(result, time.monotonic())
            with self._metrics.stage("publish"):
                self._delivery.publish(core, updates)
            if result.error is not None:
                raise SessionLost(f"step {result.step} failed: {result.error}")

    async def _send_plans(self, core: Scheduler, session: Session) -> None:
        while True:
            with self._metrics.stage("schedule"):
                plan = core.schedule(time.monotonic())
            if plan is None:
                break
            self._on_plan(plan)
            self._patience.sent()
            with self._metrics.stage("encode"):
                await session.send(plan)
            self._metrics.planned(plan)
        self._metrics.observe(core)

    async def _wait(self, core: Scheduler, reader: asyncio.Task[None]) -> None:
        """Until there is news, a deadline passes, or the executor has been silent for too long."""
        if reader.done():
            await reader
        if not core.has_work:
            check_idle(core)
        elif not core.num_in_flight:
            raise SessionLost("work is waiting and nothing is planned: starting over")  # invariant 8
        await self._patience.wait(self._wake, core.next_deadline())

    def _abandon(self, error: CitybusError) -> None:
        if self._core is not None:
            self._delivery.abandon(self._core, error)

    def _note_idle(self) -> None:
        if self._draining and (self._core is None or not self._core.has_work):
            self._idle.set()
