"""The answer to one request, for the synchronous client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from citybus.connection import REQUEST_ID_KEY, Metadata
from citybus.errors import CitybusError, from_rpc, not_ours
from citybus.messages import Delta, Finish
from citybus.reading import Reading
from citybus.reconnect import BROKEN, Reconnect, may_attach, pauses
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from grpc import _CallIterator


class Stream:
    """The answer to one request, as it is made: an iterator of `Delta`.

    Leaving it as a context manager, or dropping it, cancels the request unless it has ended. Where `reconnect` is
    given, a stream that breaks goes on where it was, without gap or repeat.
    """

    def __init__(
        self,
        stub: pb_grpc.GenerationServiceStub,
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
        self._call: _CallIterator[pb.GenerateResponse] = stub.Generate(self._request, metadata=metadata)
        self._first_call = self._call

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        with suppress(Exception):  # also where it was never wholly made, and while the interpreter ends
            self.cancel()

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while True:
            try:
                for message in self._call:
                    if (part := self._reading.take(message)) is not None:
                        return part
                break
            except grpc.RpcError as error:
                self._attach(error)
        self._over = True
        raise StopIteration

    @property
    def finish(self) -> Finish:
        """How the answer, or its first sample, ended. Raises `RuntimeError` before the stream was read to its end."""
        return self._reading.finishes[0]

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """How each sample ended. Raises `RuntimeError` before the stream has been read to its end."""
        return self._reading.finishes

    def request_id(self) -> str | None:
        """The request's id, as soon as the server has accepted it; None where it never did."""
        return _id_in(self._first_call)

    def cancel(self) -> None:
        """End the request, from any thread; reading on raises `Cancelled`. Without effect where it has ended."""
        if not self._over and not self._reading.is_complete:
            self._over = True
            if self._reconnect is not None:
                self._send_cancel(pb.CancelRequest(tenant=self._request.tenant, request_id=self._request.request_id))
        self._call.cancel()

    def _attach(self, failure: grpc.RpcError) -> None:
        """Come back to the request after `failure`. Raises `CitybusError` where that cannot be."""
        reconnect, request_id = self._reconnect, self.request_id()
        failed = from_rpc(failure, self._address, request_id)
        if self._over or reconnect is None or request_id is None or not may_attach(failure):
            raise self._end_with(failed) from None
        deadline = time.monotonic() + reconnect.timeout_s
        for pause in pauses():
            time.sleep(pause)
            call = self._stub.Attach(self._reading.rest(request_id), metadata=self._metadata)
            if not self._over and _id_in(call) is not None:
                self._call = call
                return
            if self._over or call.code() not in BROKEN or time.monotonic() > deadline:
                call.cancel()
                raise self._end_with(failed) from None

    def _end_with(self, failure: CitybusError) -> CitybusError:
        """What reading ends with after `failure`: it is ours only where the stream was cancelled here."""
        failed, self._over = failure if self._over else not_ours(failure), True
        return failed


def _id_in(call: _CallIterator[pb.GenerateResponse]) -> str | None:
    """The id in the initial metadata of a call; waits for it."""
    for key, value in call.initial_metadata() or ():
        if key == REQUEST_ID_KEY:
            return str(value)
    return None
