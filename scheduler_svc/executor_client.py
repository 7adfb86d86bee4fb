"""The executor as the scheduler sees it: facts, and a session of plans and results."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from types import TracebackType
from typing import Self, TypeVar

import grpc

from citybus.executor.v1 import executor_pb2 as pb
from citybus.executor.v1 import executor_pb2_grpc
from common import wire
from common.doorkeeper import bearer
from common.model_identity import ModelIdentity
from common.resident import ResidentPage
from common.step import ExecutorInfo, InvalidPlan, StepPlan, StepResult
from common.tls import explain_failure

KEEPALIVE_MS = 5_000
"""A connection is given up when a ping, sent this often, is not answered for as long: a stopped executor and a cut
network are noticed within twice this time."""

_PAGE_SIZE = 64
"""Resident sequences or cached blocks in a message: a few megabytes at most."""

_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),  # what counts: the one above alone leaves it at a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


_Answer = TypeVar("_Answer")
_ExecuteCall = grpc.aio.StreamStreamCall[pb.ExecuteRequest, pb.ExecuteResponse]


class SessionLost(Exception):
    """The executor cannot be reached, or has ended the session; the message says why."""


class Fenced(SessionLost):
    """A newer scheduler has taken the executor over: this one must not drive it again."""


class Contradiction(SessionLost):
    """The two sides do not agree on what the executor holds: it has to start over with nothing."""


class Refused(SessionLost):
    """The executor takes no plans from this scheduler, and will not before somebody changes the settings."""


class OtherModel(Refused):
    """The executor's model has another tokenizer than the scheduler's: it gets no plans."""


_KINDS = {grpc.StatusCode.FAILED_PRECONDITION: Fenced, grpc.StatusCode.INVALID_ARGUMENT: Contradiction}


class Session:
    """An open `Execute` stream. Results come in the order of the plans."""

    def __init__(self, call: _ExecuteCall, term: int) -> None:
        self._call = call
        self.term = term

    async def send(self, plan: StepPlan) -> None:
        """Send a plan. Raises `SessionLost`."""
        await self._guarded(self._call.write(pb.ExecuteRequest(plan=wire.plan_to_pb(plan))))

    async def receive(self) -> StepResult:
        """The next result. Raises `SessionLost`."""
        message = await self._guarded(self._call.read())
        if not isinstance(message, pb.ExecuteResponse) or message.WhichOneof("message") != "result":
            raise SessionLost("the executor ended the session")
        try:
            return wire.result_from_pb(message.result)
        except InvalidPlan as error:
            raise Contradiction(str(error)) from error

    def cancel(self) -> None:
        """End it."""
        self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def _guarded(self, operation: Awaitable[_Answer]) -> _Answer:
        try:
            return await operation
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:  # the latter: a write to an ended call
            kind = _KINDS.get(await self._call.code(), SessionLost)
            raise kind(f"{await self._call.details()}") from error


class ExecutorClient:
    """One executor's address ("host:port"), with the token that it asks for, if it does. `credentials` None: no TLS.

    `model` is what the executor has to serve; None: whatever it does.
    To be made inside a running event loop.
    """

    def __init__(
        self,
        address: str,
        *,
        model: ModelIdentity | None = None,
        token: str | None = None,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.address = address
        self._model = model
        self._metadata = () if token is None else bearer(token)
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
        self._stub = executor_pb2_grpc.ExecutorServiceStub(self._channel)
        self._scheduler_id = os.urandom(16)
        self._epoch = b""

    async def describe(self, timeout_s: float) -> ExecutorInfo:
        """Facts and capacity. Raises `SessionLost`, and `OtherModel` where it serves another one than it has to."""
        try:
            described = await self._stub.Describe(pb.DescribeRequest(), timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            kind = Refused if error.code() is grpc.StatusCode.UNAUTHENTICATED else SessionLost
            raise kind(_say(error)) from error
        info = wire.info_from_pb(described)
        served = ModelIdentity(info.model, info.tokenizer_digest)
        if self._model is not None and self._model.contradicts(served):
            raise OtherModel(
                f"the executor serves {served}, this scheduler {self._model}: what one calls a token is another text to"
                " the other; start both with the same model folder"
            )
        return info

    async def open(self, epoch: bytes, *, resume: bool, timeout_s: float) -> Session:
        """Take the executor over. Raises `SessionLost`, also where its epoch is another one.

        Raises `Fenced` where another scheduler has taken it from us, and our session broke before we heard of it.
        """
        again, self._epoch = epoch == self._epoch, epoch
        opening = pb.OpenSession(epoch=epoch, resume=resume, scheduler_id=self._scheduler_id)
        call = self._stub.Execute(metadata=self._metadata)
        try:
            async with asyncio.timeout(timeout_s):
                await call.write(pb.ExecuteRequest(open=opening))
                message = await call.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError) as error:
            call.cancel()
            refused = isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.FAILED_PRECONDITION
            raise (Fenced if refused and again else SessionLost)(_say(error)) from error
        if not isinstance(message, pb.ExecuteResponse) or message.WhichOneof("message") != "opened":
            call.cancel()
            raise SessionLost("the executor did not open a session")
        return Session(call, message.opened.term)

    async def reconcile(self, timeout_s: float) -> list[ResidentPage]:
        """What the executor holds; it stays so while ours is the open session. Raises `SessionLost`."""
        try:
            request = pb.ReconcileRequest(page_size=_PAGE_SIZE)
            call = self._stub.Reconcile(request, timeout=timeout_s, metadata=self._metadata)
            return [wire.page_from_pb(page) async for page in call]
        except grpc.aio.AioRpcError as error:
            raise SessionLost(_say(error)) from error
        except InvalidPlan as error:
            raise Contradiction(str(error)) from error

    async def close(self) -> None:
        """Give the connection up."""
        await self._channel.close()


def _say(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {explain_failure(error.details() or '')}"
    return type(error).__name__
