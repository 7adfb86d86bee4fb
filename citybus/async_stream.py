"""The answer to one request, for the client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Self

import grpc

from citybus.connection import REQUEST_ID_KEY, Metadata
from citybus.errors import Cancelled, CitybusError, from_rpc, not_ours
from citybus.messages import Delta, Finish
from citybus.reading import Reading
from citybus.reconnect import BROKEN, Reconnect, may_attach, pauses
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc as pb_grpc

_Call = (
    grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]
    | grpc.aio.UnaryStreamCall[pb.AttachRequest, pb.GenerateResponse]
)


class AsyncStream:
    """The answer to one request, as it is made: an asynchronous iterator of `Delta`.

    Leaving it as a context manager, or cancelling the task that reads it, cancels the request unless it has ended.
    Where `reconnect` is given, a stream that breaks goes on where it was, without gap or repeat.
    """

    def __init__(
        self,
        stub: pb_grpc.GenerationServiceAsyncStub,
        request: pb.GenerateRequest,
        address: str,
        reconnect: Reconnect | None,
        send_cancel: Callable[[pb.CancelRequest], None],
        metadata: Metadata,
    ) -> None:
        self._stub = stub
        self._request = request if reconnect is None else reconnect.prepare(request)
        self._address = address
        self._reconnect = reconnect
        self._send_cancel = send_cancel
        self._metadata = metadata
        self._reading = Reading(self._request)
        self._over = False
        self._call: _Call = stub.Generate(self._request, metadata=metadata)
        self._first_call = self._call
        self._messages = self._call.__aiter__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while True:
            try:
                async for message in self._messages:
                    if (part := self._reading.take(message)) is not None:
                        return part
                break
            except grpc.aio.AioRpcError as error:
                failure = from_rpc(error, self._address, await self.request_id())
                await self._attach(failure, may_attach(error))
            except asyncio.CancelledError:
                if _task_cancelled():
                    self.cancel()
                    raise
                await self._attach(Cancelled("the call was cancelled", grpc.StatusCode.CANCELLED), lives=True)
        self._over = True
        raise StopAsyncIteration

    @property
    def finish(self) -> Finish:
        """How the answer, or its first sample, ended. Raises `RuntimeError` before the stream was read to its end."""
        return self._reading.finishes[0]

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """How each sample ended. Raises `RuntimeError` before the stream has been read to its end."""
        return self._reading.finishes

    async def request_id(self) -> str | None:
        """The request's id, as soon as the server has accepted it; None where it never did."""
        return await _id_in(self._first_call)

    def cancel(self) -> None:
        """End the request; reading on raises `Cancelled`. Without effect where it has ended."""
        if not self._over and not self._reading.is_complete:
            self._over = True
            if self._reconnect is not None:
                self._send_cancel(pb.CancelRequest(tenant=self._request.tenant, request_id=self._request.request_id))
        self._call.cancel()

    async def _attach(self, failure: CitybusError, lives: bool) -> None:
        """Come back to the request, which may live still. Raises `failure` where that cannot be."""
        reconnect = self._reconnect
        request_id = None if self._over or not lives or reconnect is None else await self.request_id()
        if request_id is None or reconnect is None:
            raise self._end_with(failure) from None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + reconnect.timeout_s
        for pause in pauses():
            await asyncio.sleep(pause)
            call: _Call = self._stub.Attach(self._reading.rest(request_id), metadata=self._metadata)
            if await _id_in(call) is not None and not self._over:
                self._call, self._messages = call, call.__aiter__()
                return
            if self._over or await call.code() not in BROKEN or loop.time() > deadline:
                call.cancel()
                raise self._end_with(failure) from None

    def _end_with(self, failure: CitybusError) -> CitybusError:
        """What reading ends with after `failure`: it is ours only where the stream was cancelled here."""
        failed, self._over = failure if self._over else not_ours(failure), True
        return failed


async def _id_in(call: _Call) -> str | None:
    """The id in the initial metadata of a call; waits for it."""
    for key, value in await call.initial_metadata() or ():
        if key == REQUEST_ID_KEY:
            return str(value)
    return None


def _task_cancelled() -> bool:
    """Whether the current task is being cancelled, rather than only the call it reads (gRPC raises the same)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
