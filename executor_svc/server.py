"""Puts a `StepExecutor` on the wire, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import grpc
import structlog

from citybus.executor.v1 import executor_pb2 as pb
from citybus.executor.v1 import executor_pb2_grpc
from common import wire
from common.errors import FailedPrecondition, InvalidRequest, Unavailable
from common.metrics import ExecutorMetrics
from common.step import InvalidPlan, StaleTerm, StepPlan, StepResult
from common.step_executor import PendingStep, PipelinedExecutor, StepExecutor

READ_AHEAD = 8
"""Most plans of a session taken off the wire and not answered; more wait in the connection."""

_DEFAULT_PAGE_SIZE = 256
_QUIET_CHECKS = 5
_QUIET_INTERVAL_S = 0.1

T = TypeVar("T")
_ExecuteContext = grpc.aio.ServicerContext[pb.ExecuteRequest, pb.ExecuteResponse]

log = structlog.get_logger()


class Session:
    """One scheduler's `Execute` call, from its opening on."""

    def __init__(self, term: int, scheduler_id: bytes) -> None:
        self.term = term
        self.scheduler_id = scheduler_id
        self.ahead = asyncio.Semaphore(READ_AHEAD)
        self.answers: asyncio.Queue[asyncio.Future[StepResult | PendingStep] | Exception | None] = asyncio.Queue()
        """In the order of the plans: steps to come, then the error that ends the session, or None for its end."""
        self.over: Exception | None = None
        """Why no plan of the session is executed any more."""

    def end(self, reason: Exception) -> None:
        """Execute no further plan, and end the call once what is being executed is answered."""
        self.over = self.over or reason
        self.answers.put_nowait(reason)

    def abandon(self) -> None:
        """The call has ended: execute no further plan."""
        self.over = self.over or StaleTerm(f"the session of term {self.term} has ended")
        while not self.answers.empty():
            answer = self.answers.get_nowait()
            if isinstance(answer, asyncio.Future):
                answer.cancel()


class ExecutorServicer(executor_pb2_grpc.ExecutorServiceServicer):
    """Calls the executor from one thread of its own, so that the event loop answers while a step is computed.

    A plan is decoded and queued for that thread while the one before it is still being computed.
    """

    def __init__(self, executor: StepExecutor, metrics: ExecutorMetrics) -> None:
        self._executor = executor
        self._begin_step = executor.begin if isinstance(executor, PipelinedExecutor) else executor.step
        self._metrics = metrics
        self._info = wire.info_to_pb(executor.describe())
        self._thread = ThreadPoolExecutor(1, "engine")
        self._waiting = ThreadPoolExecutor(1, "waiting")
        self._pending: PendingStep | None = None
        self._session: Session | None = None
        self._replaced: set[bytes] = set()
        self._draining = False

    async def Describe(
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext[pb.DescribeRequest, pb.DescribeResponse]
    ) -> pb.DescribeResponse:
        return self._info

    async def Execute(
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: _ExecuteContext
    ) -> AsyncGenerator[pb.ExecuteResponse, None]:
        try:
            session = await self._open(await anext(request_iterator, pb.ExecuteRequest()))
            reader = asyncio.create_task(self._read(session, request_iterator))
            try:
                yield pb.ExecuteResponse(opened=pb.SessionOpened(term=session.term))
                while (answer := await session.answers.get()) is not None:
                    if isinstance(answer, Exception):
                        raise answer
                    result = await self._result(await answer)
                    yield pb.ExecuteResponse(result=wire.result_to_pb(result))
                    session.ahead.release()
            finally:
                session.abandon()
                reader.cancel()
                if self._pending is not None:  # nobody else asks for it any more
                    self._call(self._pending.result)
                log.info("session ended", term=session.term)
        except StaleTerm as error:
            raise FailedPrecondition(str(error)) from error
        except InvalidPlan as error:
            log.error("plan refused", reason=str(error))
            raise InvalidRequest(str(error)) from error

    async def Reconcile(
        self,
        request: pb.ReconcileRequest,
        context: grpc.aio.ServicerContext[pb.ReconcileRequest, pb.ReconcileResponse],
    ) -> AsyncGenerator[pb.ReconcileResponse, None]:
        page_size = request.page_size if request.HasField("page_size") else _DEFAULT_PAGE_SIZE
        if page_size < 1:
            raise InvalidRequest("page_size must be at least 1")
        for page in await self._call(lambda: list(self._executor.resident(page_size))):
            yield wire.page_to_pb(page)

    async def drain(self) -> None:
        """Refuse new sessions, let the open one go on until nothing of it is resident, and end it."""
        self._draining = True
        try:
            quiet = 0
            while self._session and not self._session.over and quiet < _QUIET_CHECKS:
                await asyncio.sleep(_QUIET_INTERVAL_S)
                page = await self._call(lambda: next(self._executor.resident(1)))
                quiet = 0 if page.sequences else quiet + 1
        finally:
            if self._session:
                self._session.end(Unavailable("the executor is shutting down"))

    def close(self) -> None:
        """End the engine's thread, once the step it computes is done."""
        self._thread.shutdown(cancel_futures=True)
        self._waiting.shutdown(cancel_futures=True)

    async def _open(self, request: pb.ExecuteRequest) -> Session:
        if request.WhichOneof("message") != "open":
            raise InvalidRequest("the first message of a session must be `open`")
        if self._draining:
            raise Unavailable("the executor is shutting down")
        epoch, resume = request.open.epoch, request.open.resume
        scheduler_id = request.open.scheduler_id
        if scheduler_id in self._replaced:
            raise StaleTerm("a newer scheduler has taken the executor over")
        session = Session(await self._call(partial(self._executor.open, epoch, resume)), scheduler_id)
        older, self._session = self._session, session
        if older:
            older.end(StaleTerm(f"term {older.term} has ended: a newer scheduler holds term {session.term}"))
            if older.scheduler_id not in (b"", scheduler_id):
                self._replaced.add(older.scheduler_id)
        self._metrics.sessions_opened.inc()
        log.info("session opened", term=session.term, resume=resume)
        return session

    async def _read(self, session: Session, requests: AsyncIterator[pb.ExecuteRequest]) -> None:
        """Queue every plan for the engine's thread, at most `READ_AHEAD` beyond the last answer."""
        try:
            async for request in requests:
                if request.WhichOneof("message") != "plan":
                    raise InvalidRequest("every message of a session but the first must be `plan`")
                plan = wire.plan_from_pb(request.plan)
                session.answers.put_nowait(self._call(partial(self._begin, session, plan)))
                await session.ahead.acquire()
            session.answers.put_nowait(None)
        except Exception as error:  # the call ends with it, after the answers before
            session.answers.put_nowait(error)

    def _begin(self, session: Session, plan: StepPlan) -> StepResult | PendingStep:
        """On the engine's thread: a plan, unless its session has ended or one before it was refused."""
        if session.over:
            raise session.over
        try:
            begun = self._begin_step(plan)
        except Exception as error:
            session.over = error
            raise
        if isinstance(begun, StepResult):
            self._observe(plan, begun)
        else:
            begun.known.add_done_callback(lambda known: self._observe(plan, known.result()))
            self._pending = begun
        return begun

    async def _result(self, begun: StepResult | PendingStep) -> StepResult:
        """Of a step; while a device computes it, the engine's thread can begin the next."""
        if isinstance(begun, StepResult):
            return begun
        known = asyncio.wrap_future(begun.known)
        await asyncio.get_running_loop().run_in_executor(self._waiting, begun.wait)
        self._call(begun.result)  # a step behind it may ask before
        return await known

    def _observe(self, plan: StepPlan, result: StepResult) -> None:
        self._metrics.steps.inc()
        self._metrics.failed_steps.inc(result.error is not None)
        self._metrics.idle_seconds.inc(result.idle_ns / 1e9)
        self._metrics.step_seconds.observe(result.execute_ns / 1e9)
        self._metrics.step_tokens.observe(plan.num_tokens)
        if result.error is None:
            num_drawn = min(len(result.sampled), plan.num_tokens)
            num_right = len(result.sampled) - len({token.sequence_id for token in result.sampled})
            num_wrong = max(0, plan.num_draft_tokens - num_right)
            self._metrics.computed_tokens.labels(kind="decode").inc(num_drawn)
            self._metrics.computed_tokens.labels(kind="prefill").inc(plan.num_tokens - num_drawn - num_wrong)
            self._metrics.computed_tokens.labels(kind="rejected").inc(num_wrong)

    def _call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call on the engine's thread, after everything queued before."""
        return asyncio.get_running_loop().run_in_executor(self._thread, function)
