"""The synchronous client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Self, Unpack
from weakref import WeakSet

import grpc

from citybus.connection import (
    DEFAULT_ADDRESS,
    DEFAULT_KEEPALIVE,
    HEALTH_CHECK,
    HEALTH_INTERVAL_S,
    HEALTH_REQUEST,
    NO_ANSWER,
    NOT_SERVING,
    SERVING,
    Keepalive,
    authorization,
    not_ready,
    open_channel,
    why_unready,
)
from citybus.errors import from_rpc, not_ours
from citybus.messages import Completion, Model, completion_of, completions_of, models_of
from citybus.reconnect import DEFAULT_RECONNECT, Reconnect
from citybus.requests import (
    ChatMessage,
    RequestOptions,
    check_one_sample,
    to_count_request,
    to_generate_request,
)
from citybus.stream import Stream
from citybus.tls import Tls
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc as pb_grpc

_GOODBYE_S = 1.0
"""What telling the server that a request is cancelled may take."""


class Client:
    """A connection to the server at `address` ("host:port"), for any number of threads.

    Nothing is sent before the first call. As a context manager it is closed at the end, which cancels what is open.
    Answers survive a break of the connection and a change of the scheduler, unless `reconnect` is None.

    `api_key` None: the one of the variable CITYBUS_API_KEY, if it is set. `tls` None: the connection is not encrypted.
    The variables CITYBUS_ADDRESS and CITYBUS_TLS_... are for the command line: nothing here reads them.
    Raises `ValueError` where an argument is of no use.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        keepalive: Keepalive | None = DEFAULT_KEEPALIVE,
        reconnect: Reconnect | None = DEFAULT_RECONNECT,
        api_key: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        self.address = address
        self._metadata = authorization(api_key)
        self._reconnect = reconnect
        self._streams: WeakSet[Stream] = WeakSet()
        self._cancels: set[grpc.Future[pb.CancelResponse]] = set()
        self._channel = open_channel(address, keepalive, tls)
        self._stub = pb_grpc.GenerationServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; open streams end with `Cancelled`."""
        for stream in list(self._streams):
            stream.cancel()
        deadline = time.monotonic() + _GOODBYE_S
        for cancel in list(self._cancels):
            with suppress(grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError):
                cancel.result(timeout=max(0.0, deadline - time.monotonic()))
        self._channel.close()

    def generate(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> Stream:
        """Start one answer and return its stream; the prompt is a text, `messages=[...]` or `token_ids=[...]`.

        Raises `ValueError` or `TypeError` for options no request can hold. What the server refuses is raised by the
        stream as a `CitybusError`.
        """
        request = to_generate_request(prompt, options)
        stream = Stream(self._stub, request, self.address, self._reconnect, self._send_cancel, self._metadata)
        self._streams.add(stream)
        return stream

    def _send_cancel(self, request: pb.CancelRequest) -> None:
        """Tell the server that nobody waits for a request any more; what it says to that is not waited for."""
        cancel = self._stub.Cancel.future(request, timeout=_GOODBYE_S, metadata=self._metadata)
        self._cancels.add(cancel)
        cancel.add_done_callback(self._cancels.discard)

    def complete(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> Completion:
        """The whole answer to what `generate` takes. Raises `CitybusError`."""
        check_one_sample(options)
        with self.generate(prompt, **options) as stream:
            deltas = list(stream)
            return completion_of(deltas, stream.finish, stream.request_id())

    def samples(self, prompt: str | None = None, **options: Unpack[RequestOptions]) -> list[Completion]:
        """All `n` answers to what `generate` takes, in the order of their numbers. Raises `CitybusError`."""
        with self.generate(prompt, **options) as stream:
            deltas = list(stream)
            return completions_of(deltas, stream.finishes, stream.request_id())

    def models(self, *, timeout: float = 30.0) -> list[Model]:
        """The served models; waits at most `timeout` seconds. Raises `CitybusError`."""
        with _mapped(self.address):
            return models_of(self._stub.ListModels(pb.ListModelsRequest(), timeout=timeout, metadata=self._metadata))

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
            return self._stub.CountTokens(request, timeout=timeout, metadata=self._metadata).num_tokens

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Return once the server says it is healthy. Raises `Unavailable`, which says why, after `timeout` seconds."""
        check: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(HEALTH_CHECK)
        deadline = time.monotonic() + timeout
        why = NO_ANSWER
        while (left := deadline - time.monotonic()) > 0:
            try:
                if check(HEALTH_REQUEST, timeout=left) == SERVING:
                    return
                why = NOT_SERVING
            except grpc.RpcError as error:
                why = why_unready(error, self.address, why)
            time.sleep(min(HEALTH_INTERVAL_S, left))
        raise not_ready(self.address, timeout, why)


@contextmanager
def _mapped(address: str) -> Iterator[None]:
    """Turns gRPC's error into ours."""
    try:
        yield
    except grpc.RpcError as error:
        raise not_ours(from_rpc(error, address)) from None
