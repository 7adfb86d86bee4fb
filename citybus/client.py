"""The synchronous client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

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
from citybus.errors import from_rpc
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

if TYPE_CHECKING:
    from grpc import _CallIterator


class Client:
    """A connection to the server at `address` ("host:port"), for any number of threads.

    Nothing is sent before the first call. As a context manager it is closed at the end, which cancels what is open.
    """

    def __init__(self, address: str = DEFAULT_ADDRESS, *, keepalive: Keepalive | None = DEFAULT_KEEPALIVE) -> None:
        self.address = address
        self._channel = grpc.insecure_channel(address, options=channel_options(keepalive))
        self._stub = pb_grpc.GenerationServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; open streams end with `Cancelled`."""
        self._channel.close()

    def generate(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> Stream:
        """Start one answer and return its stream; the prompt is a text, `messages=[...]` or `token_ids=[...]`.

        Raises `ValueError` or `TypeError` for options no request can hold. What the server refuses is raised by the
        stream as a `CitybusError`.
        """
        return Stream(self._stub.Generate(to_generate_request(prompt, options)), self.address)

    def complete(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> Completion:
        """The whole answer to what `generate` takes. Raises `CitybusError`."""
        with self.generate(prompt, **options) as stream:
            deltas = list(stream)
            return completion_of(deltas, stream.finish, stream.request_id())

    def models(self, *, timeout: float = 30.0) -> list[Model]:
        """The served models; waits at most `timeout` seconds. Raises `CitybusError`."""
        with _mapped(self.address):
            return models_of(self._stub.ListModels(pb.ListModelsRequest(), timeout=timeout))

    def count_tokens(
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
            return self._stub.CountTokens(request, timeout=timeout).num_tokens

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Return once the server says it is healthy. Raises `Unavailable` after `timeout` seconds."""
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(HEALTH_CHECK)
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            try:
                if check(HEALTH_REQUEST, timeout=left, wait_for_ready=True) == SERVING:
                    return
            except grpc.RpcError:
                pass  # the connection broke while it waited: the server is being restarted
            time.sleep(min(HEALTH_INTERVAL_S, left))
        raise not_ready(self.address, timeout)


class Stream:
    """The answer to one request, as it is made: an iterator of `Delta`.

    Leaving it as a context manager, or dropping it, cancels the request unless it has ended.
    """

    def __init__(self, call: _CallIterator[pb.GenerateResponse], address: str) -> None:
        self._call = call
        self._address = address
        self._finish: Finish | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        try:
            for message in self._call:
                self._finish = finish_of(message)
                if (part := delta_of(message)) is not None:
                    return part
        except grpc.RpcError as error:
            raise from_rpc(error, self._address, self.request_id()) from None
        raise StopIteration

    @property
    def finish(self) -> Finish:
        """How the answer ended. Raises `RuntimeError` before the stream has been read to its end."""
        if self._finish is None:
            raise RuntimeError("the stream has not ended: read it to its end first")
        return self._finish

    def request_id(self) -> str | None:
        """The request's id, as soon as the server has accepted it; None where it never did."""
        for key, value in self._call.initial_metadata():
            if key == REQUEST_ID_KEY:
                return str(value)
        return None

    def cancel(self) -> None:
        """End the request, from any thread; reading on raises `Cancelled`. Without effect where it has ended."""
        self._call.cancel()


@contextmanager
def _mapped(address: str) -> Iterator[None]:
    """Turns gRPC's error into ours."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc(error, address) from None
