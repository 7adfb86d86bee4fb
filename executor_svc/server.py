"""The executor on the wire: messages to plans, results to messages, and one session at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from citybus.executor.v1 import executor_pb2 as pb
from citybus.executor.v1 import executor_pb2_grpc
from common import wire
from common.errors import FailedPrecondition, InvalidRequest
from common.step import InvalidPlan, StaleTerm, StepExecutor, StepPlan

DEFAULT_PAGE_SIZE = 256

Context = grpc.aio.ServicerContext[Any, Any]

_Answer = TypeVar("_Answer")
_Inbox = asyncio.Queue[StepPlan | Exception | None]
"""What a session has yet to do: a plan, the error it ends with, or None where its client has said all."""


class ExecutorServicer(executor_pb2_grpc.ExecutorServiceServicer):
    """Serves any `StepExecutor`, whose calls all happen on one thread of their own.

    The event loop stays free for health, facts and pings, and has the next plan decoded when a step ends.
    """

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._current: _Inbox | None = None

    def close(self) -> None:
        """End the thread, after the step it is at."""
        self._thread.shutdown()

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        return wire.info_to_pb(self._executor.describe())

    async def Execute(self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: Context) -> None:  # type: ignore[override]
        opening = await anext(request_iterator, None)
        if opening is None or opening.WhichOneof("message") != "open":
            raise InvalidRequest("the first message of a session must be open")
        inbox: _Inbox = asyncio.Queue()
        term = await self._open(opening.open, inbox)
        await context.write(pb.ExecuteResponse(opened=pb.SessionOpened(term=term)))
        reader = asyncio.create_task(_read(request_iterator, inbox))
        try:
            await self._execute(inbox, context)
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader

    async def Reconcile(self, request: pb.ReconcileRequest, context: Context) -> None:  # type: ignore[override]
        page_size = request.page_size if request.HasField("page_size") else DEFAULT_PAGE_SIZE
        if page_size < 1:
            raise InvalidRequest("page_size must be 1 or more")
        for page in await self._call(lambda: list(self._executor.resident(page_size))):
            await context.write(wire.page_to_pb(page))

    async def _open(self, message: pb.OpenSession, inbox: _Inbox) -> int:
        """Start a session and end the one before it. Returns the term."""
        try:
            term = await self._call(lambda: self._executor.open(message.epoch, message.resume))
        except StaleTerm as error:
            raise FailedPrecondition(str(error)) from error
        if self._current is not None:
            self._current.put_nowait(FailedPrecondition(f"a newer scheduler holds the executor, with term {term}"))
        self._current = inbox
        return term

    async def _execute(self, inbox: _Inbox, context: Context) -> None:
        """Step by step, in the order of the plans, until the client is done."""
        while (plan := await inbox.get()) is not None:
            if isinstance(plan, Exception):
                raise plan
            try:
                result = await self._call(self._executor.step, plan)
            except StaleTerm as error:
                raise FailedPrecondition(str(error)) from error
            except InvalidPlan as error:
                raise InvalidRequest(str(error)) from error
            await context.write(pb.ExecuteResponse(result=wire.result_to_pb(result)))

    async def _call(self, function: Callable[..., _Answer], *arguments: object) -> _Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


async def _read(requests: AsyncIterator[pb.ExecuteRequest], inbox: _Inbox) -> None:
    """Decode plans as they come in; flow control of the stream and the scheduler's window bound their number."""
    async for request in requests:
        if request.WhichOneof("message") != "plan":
            inbox.put_nowait(InvalidRequest("every message of a session after the first must be a plan"))
            return
        try:
            inbox.put_nowait(wire.plan_from_pb(request.plan))
        except InvalidPlan as error:
            inbox.put_nowait(InvalidRequest(str(error)))
            return
    inbox.put_nowait(None)
