"""What the gRPC servers of both services share: health, reflection, errors as statuses, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common import address
from common.errors import Abandoned, CitybusError, InvalidRequest, StartupError
from common.server_limits import MAX_CALLS, MAX_CONNECTIONS, server_options

PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata with which a server says when to try again (gRFC A6), in milliseconds."""

FINAL_KEY = "citybus-final"
"""Trailing metadata that says that a request has ended with this error, and there is nothing to attach to."""

LAST_WORDS_S = 1.0
"""What calls still open after the drain get to send their last message and status."""

_MAX_STATUS_CHARS = 1_000  # a status travels in trailers, which clients limit to 8 KiB
_RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)

log = structlog.get_logger()


class GrpcServer:
    """A server whose servicers are added to `server` before `start`. To be made inside a running event loop.

    `listen` is "host:port" (port 0: any free one), which the option `flag` gave; `services` are the full names of what
    it serves. A client's message of more than `max_message_bytes` is refused with RESOURCE_EXHAUSTED at its head, and
    so is a call beyond `max_calls` open ones. `interceptors` come after the one that turns errors into statuses.
    `credentials` None: no TLS.
    """

    def __init__(
        self,
        listen: str,
        *,
        flag: str = "--listen",
        services: Sequence[str],
        max_message_bytes: int,
        max_calls: int = MAX_CALLS,
        max_connections: int = MAX_CONNECTIONS,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.listen = listen
        self._flag = flag
        self._credentials = credentials
        self.server = grpc.aio.server(
            interceptors=[ErrorInterceptor(), *interceptors],
            options=server_options(max_message_bytes, max_calls, max_connections),
            maximum_concurrent_rpcs=max_calls,
        )
        self._services = tuple(services)
        self._health = health.aio.HealthServicer()

    async def start(self) -> int:
        """Serve, healthy only after `set_serving(True)`; returns the bound port. Raises `StartupError`."""
        await self.set_serving(False)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        reflection.enable_server_reflection(
            (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME), self.server
        )
        address.check_free(self.listen, self._flag)  # gRPC itself gives no reason
        try:
            if self._credentials is None:
                port = self.server.add_insecure_port(self.listen)
            else:
                port = self.server.add_secure_port(self.listen, self._credentials)
        except RuntimeError as error:
            raise StartupError(f"cannot listen on {self.listen}: {error}") from error
        await self.server.start()
        return port

    async def set_serving(self, serving: bool) -> None:
        """What the health service says of the whole server and of every service. Without effect once it drains."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for service in (health.OVERALL_HEALTH, *self._services):
            await self._health.set(service, status)

    async def run_until_signal(self, on_drain: Callable[[], Awaitable[None]], grace_s: float) -> None:
        """Serve until SIGTERM or SIGINT, then `drain`. A second signal ends the process at once."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()

        def first(signum: int) -> None:
            arrived.set()
            for each in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(each)
                signal.signal(each, _exit_now)
            log.info("draining", signal=signal.Signals(signum).name, grace_s=grace_s)

        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, first, each)
        await arrived.wait()
        await self.drain(on_drain, grace_s)

    async def drain(self, on_drain: Callable[[], Awaitable[None]], grace_s: float) -> None:
        """Turn unhealthy for good, wait for `on_drain` (at most `grace_s` seconds, then it is cancelled), and stop.

        `on_drain` has the service refuse new work and returns when nothing is left to wait for; where it is cancelled
        it may still end what is open with an error.
        """
        await self._health.enter_graceful_shutdown()
        try:
            async with asyncio.timeout(grace_s):
                await on_drain()
        except TimeoutError:
            log.warning("drain cut short", grace_s=grace_s)
        finally:
            await self.server.stop(LAST_WORDS_S)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a servicer raises into a status: a `CitybusError` into its own, anything else into INTERNAL.

    Of an unexpected exception only the class and the frames are logged: its message could quote a request. Bytes that
    are no message are the client's fault and get INVALID_ARGUMENT.
    """

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        takes, gives = (
            "stream" if streams else "unary" for streams in (handler.request_streaming, handler.response_streaming)
        )
        servicer = getattr(handler, f"{takes}_{gives}")
        guard = _guard_stream if inspect.isasyncgenfunction(servicer) else _guard_call
        make = getattr(grpc, f"{takes}_{gives}_rpc_method_handler")
        guarded = guard(servicer, _parser(handler), handler_call_details.method)
        return make(guarded, response_serializer=handler.response_serializer)


def _parser(handler: Any) -> Callable[[Any], Any]:
    """What makes the request of a servicer from the bytes, or the stream of them, that the client sent."""

    def parse(raw: bytes) -> Any:
        try:
            return handler.request_deserializer(raw)
        except DecodeError:
            raise InvalidRequest("what was sent is not a message of this method") from None

    async def parse_all(raws: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for raw in raws:  # not before it is asked for: gRPC warns of a stream that is begun and left
            yield parse(raw)

    return parse_all if handler.request_streaming else parse


def _guard_call(
    servicer: Callable[..., Awaitable[Any]], parse: Callable[[Any], Any], method: str
) -> Callable[..., Awaitable[Any]]:
    async def guarded(raw: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await servicer(parse(raw), context)
        except Exception as error:
            _fail(error, method, context)
            return None

    return guarded


def _guard_stream(
    servicer: Callable[..., AsyncGenerator[Any, None]], parse: Callable[[Any], Any], method: str
) -> Callable[..., Awaitable[None]]:
    async def guarded(raw: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            # gRPC leaves the generator of a cancelled call to the garbage collector; this closes it at once.
            async with contextlib.aclosing(servicer(parse(raw), context)) as responses:
                async for response in responses:
                    await context.write(response)
        except Exception as error:
            _fail(error, method, context)

    return guarded


def _fail(error: Exception, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Have the call end with the status of `error` when its servicer returns.

    Not by `context.abort`: gRPC keeps what that raises, and with its frames the request, until the garbage collector
    comes, which large objects do not call.
    """
    if isinstance(error, grpc.aio.AbortError | grpc.aio.UsageError):  # the servicer's own end of the call, or fault
        raise error
    if isinstance(error, grpc.aio.BaseError):  # the client has gone: whoever cuts a call must not fill the log
        return
    code, details = grpc.StatusCode.INTERNAL, "internal error; the server's log says more"
    if isinstance(error, CitybusError):
        code, details = error.code, str(error)[:_MAX_STATUS_CHARS]
        context.set_trailing_metadata(_metadata_of(error))
    else:
        frames = traceback.format_tb(error.__traceback__)
        log.error("call failed", method=method, error=type(error).__name__, frames=frames)
    context.set_code(code)
    context.set_details(details)


def _metadata_of(error: CitybusError) -> tuple[tuple[str, str], ...]:
    final = ((FINAL_KEY, "true"),) if isinstance(error, Abandoned) else ()
    if error.code in _RETRYABLE and error.retry_after_s is not None:
        return (*final, (PUSHBACK_KEY, str(round(error.retry_after_s * 1000))))
    return final


def _exit_now(signum: int, frame: object) -> None:
    os._exit(128 + signum)
