"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Self, Unpack

import grpc

from citybus.connection import (
    DEFAULT_ADDRESS,
    DEFAULT_KEEPALIVE,
    HEALTH_CHECK,
    HEALTH_INTERVAL_S,
    HEALTH_REQUEST,
    REQUEST_ID_KEY,
    SERVING,
    Keepalive,
    channel_options,
    not_ready,
)
from citybus.errors import Cancelled, from_rpc
from citybus.messages import (
    ChatMessage,
    Completion,
    Delta,
    Finish,
    Model,
    RequestOptions,
    completion_of,
    delta_of,
    finish_of,
    models_of,
    to_count_request,
    to_generate_request,
)
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc as pb_grpc


class AsyncClient:
    """A connection to the server at `address` ("host:port"), made and used inside one event loop.

    Nothing is sent before the first call. As a context manager it is closed at the end, which cancels what is open.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, keepalive: Keepalive | None = DEFAULT_KEEPALIVE) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=channel_options(keepalive))
        self._stub = pb_grpc.GenerationServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; open streams end with `Cancelled`."""
        await self._channel.close()

    def generate(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> AsyncStream:
        """Start one answer and return its stream; the prompt is a text, `messages=[...]` or `token_ids=[...]`.

        Raises `ValueError` or `TypeError` for options no request can hold. What the server refuses is raised by the
        stream as a `CitybusError`.
        """
        return AsyncStream(self._stub.Generate(to_generate_request(prompt, options)), self.address)

    async def complete(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> Completion:
        """The whole answer to what `generate` takes. Raises `CitybusError`."""
        async with self.generate(prompt, **options) as stream:
            deltas = [part async for part in stream]
            return completion_of(deltas, stream.finish, await stream.request_id())

    async def models(self, *, timeout: float = 30.0) -> list[Model]:
        """The served models; waits at most `timeout` seconds. Raises `CitybusError`."""
        with _mapped(self.address):
            return models_of(await self._stub.ListModels(pb.ListModelsRequest(), timeout=timeout))

    async def count_tokens(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[ChatMessage] | None = None,
        model: str = "",
        timeout: float = 30.0,
    ) -> int:
        """Number of tokens of a text or a conversation; waits at most `timeout` seconds. Raises `CitybusError`."""
        request = to_count_request(prompt, messages, model)
        with _mapped(self.address):
            return (await self._stub.CountTokens(request, timeout=timeout)).num_tokens

    async def wait_ready(self, timeout: float = 60.0) -> None:
        """Return once the server says it is healthy. Raises `Unavailable` after `timeout` seconds."""
        check: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(HEALTH_CHECK)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while (left := deadline - loop.time()) > 0:
            try:
                if await check(HEALTH_REQUEST, timeout=left, wait_for_ready=True) == SERVING:
                    return
            except grpc.RpcError:
                pass  # the connection broke while it waited: the server is being restarted
            await asyncio.sleep(min(HEALTH_INTERVAL_S, left))
        raise not_ready(self.address, timeout)


class AsyncStream:
    """The answer to one request, as it is made: an asynchronous iterator of `Delta`.

    Leaving it as a context manager, or cancelling the task that reads it, cancels the request unless it has ended.
    """

    def __init__(self, call: grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse], address: str) -> None:
        self._call = call
        self._messages = call.__aiter__()
        self._address = address
        self._finish: Finish | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        try:
            async for message in self._messages:
                self._finish = finish_of(message)
                if (part := delta_of(message)) is not None:
                    return part
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self._address, await self.request_id()) from None
        except asyncio.CancelledError:
            if _task_cancelled():
                raise
            raise Cancelled("the call was cancelled", grpc.StatusCode.CANCELLED) from None
        raise StopAsyncIteration

    @property
    def finish(self) -> Finish:
        """How the answer ended. Raises `RuntimeError` before the stream has been read to its end."""
        if self._finish is None:
            raise RuntimeError("the stream has not ended: read it to its end first")
        return self._finish

    async def request_id(self) -> str | None:
        """The request's id, as soon as the server has accepted it; None where it never did."""
        for key, value in await self._call.initial_metadata():
            if key == REQUEST_ID_KEY:
                return str(value)
        return None

    def cancel(self) -> None:
        """End the request; reading on raises `Cancelled`. Without effect where it has ended."""
        self._call.cancel()


def _task_cancelled() -> bool:
    """Whether the current task is being cancelled, rather than only the call it reads (gRPC raises the same)."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@contextmanager
def _mapped(address: str) -> Iterator[None]:
    """Turns gRPC's error into ours."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error, address) from None
