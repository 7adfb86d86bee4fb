"""The shared gRPC server: statuses of errors, health, reflection, limits; real sockets throughout."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from structlog.testing import capture_logs

from citybus.executor.v1 import executor_pb2, executor_pb2_grpc
from citybus.v1 import generation_pb2, generation_pb2_grpc
from common import errors
from common.grpc_server import PUSHBACK_KEY, GrpcServer

GENERATION = "citybus.v1.GenerationService"
EXECUTOR = "citybus.executor.v1.ExecutorService"
LIMIT = 64 * 1024
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

Context = grpc.aio.ServicerContext[Any, Any]
Words = AsyncIterator[generation_pb2.GenerateResponse]
Plans = AsyncIterator[executor_pb2.ExecuteRequest]
Results = AsyncIterator[executor_pb2.ExecuteResponse]
Start = Callable[..., Awaitable[tuple[GrpcServer, grpc.aio.Channel]]]
StatusOf = Callable[[grpc.aio.Channel], Awaitable[grpc.aio.AioRpcError]]


class Generation(generation_pb2_grpc.GenerationServiceServicer):
    """Says one word, then raises what it is given; or streams until it is closed."""

    def __init__(self, error: Exception | None = None, word: str = "word") -> None:
        self.error = error
        self.word = word
        self.closed = asyncio.Event()

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> Words:
        try:
            yield generation_pb2.GenerateResponse(text=self.word)
            if self.error:
                raise self.error
            while True:
                await asyncio.sleep(0)
                yield generation_pb2.GenerateResponse(text="x" * 1000)
        finally:
            self.closed.set()

    async def CountTokens(
        self, request: generation_pb2.CountTokensRequest, context: Context
    ) -> generation_pb2.CountTokensResponse:
        if self.error:
            raise self.error
        return generation_pb2.CountTokensResponse(num_tokens=len(request.text))

    async def ListModels(self, request: generation_pb2.ListModelsRequest, context: Context) -> NoReturn:
        await context.abort(grpc.StatusCode.DATA_LOSS, "said by the servicer itself")


class Executor(executor_pb2_grpc.ExecutorServiceServicer):
    """Answers each plan with a result of its step, and refuses step 3."""

    async def Execute(self, request_iterator: Plans, context: Context) -> Results:
        async for request in request_iterator:
            if request.plan.step == 3:
                raise errors.FailedPrecondition("another scheduler has taken over")
            yield executor_pb2.ExecuteResponse(result=executor_pb2.StepResult(step=request.plan.step))


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a server for a servicer and gives a channel to it."""
    open_ones: list[tuple[GrpcServer, grpc.aio.Channel]] = []

    async def start(generation: Generation | None = None) -> tuple[GrpcServer, grpc.aio.Channel]:
        server = GrpcServer("127.0.0.1:0", services=[GENERATION, EXECUTOR], max_message_bytes=LIMIT)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation or Generation(), server.server)
        executor_pb2_grpc.add_ExecutorServiceServicer_to_server(Executor(), server.server)
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}")
        open_ones.append((server, channel))
        return server, channel

    yield start
    for server, channel in open_ones:
        await channel.close()
        await server.server.stop(None)


async def status_of_unary(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await generation_pb2_grpc.GenerationServiceStub(channel).CountTokens(generation_pb2.CountTokensRequest())
    return failure.value


async def status_of_stream(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
    call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(generation_pb2.GenerateRequest())
    assert (await call.read()).text == "word"
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read()
    return failure.value


@pytest.mark.parametrize("status_of", [status_of_unary, status_of_stream])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.CitybusError("a message"), grpc.StatusCode.INTERNAL),
        (errors.InvalidRequest("a message"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.NotFound("a message"), grpc.StatusCode.NOT_FOUND),
        (errors.AlreadyExists("a message"), grpc.StatusCode.ALREADY_EXISTS),
        (errors.Exhausted("a message"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.Unavailable("a message"), grpc.StatusCode.UNAVAILABLE),
        (errors.FailedPrecondition("a message"), grpc.StatusCode.FAILED_PRECONDITION),
    ],
)
async def test_our_errors_travel_as_their_status(
    start: Start, status_of: StatusOf, error: Exception, code: grpc.StatusCode
) -> None:
    _, channel = await start(Generation(error))
    with capture_logs() as logged:
        status = await status_of(channel)
    assert (status.code(), status.details()) == (code, "a message")
    assert PUSHBACK_KEY not in dict(status.trailing_metadata())
    assert logged == []


@pytest.mark.parametrize("status_of", [status_of_unary, status_of_stream])
async def test_anything_else_is_internal_and_logged_without_its_message(start: Start, status_of: StatusOf) -> None:
    _, channel = await start(Generation(KeyError("words of a prompt")))
    with capture_logs() as logged:
        status = await status_of(channel)
    assert status.code() is grpc.StatusCode.INTERNAL
    assert status.details() == "internal error; the server's log says more"
    (line,) = logged
    method = "CountTokens" if status_of is status_of_unary else "Generate"
    assert (line["event"], line["log_level"], line["error"]) == ("call failed", "error", "KeyError")
    assert line["method"] == f"/{GENERATION}/{method}"
    assert f"in {method}" in line["frames"][-1]
    assert "words of a prompt" not in str(logged)


async def test_a_servicer_may_end_a_call_itself(start: Start) -> None:
    _, channel = await start()
    with pytest.raises(grpc.aio.AioRpcError) as failure, capture_logs() as logged:
        await generation_pb2_grpc.GenerationServiceStub(channel).ListModels(generation_pb2.ListModelsRequest())
    assert (failure.value.code(), failure.value.details()) == (
        grpc.StatusCode.DATA_LOSS,
        "said by the servicer itself",
    )
    assert logged == []


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (errors.Unavailable("later", retry_after_s=1.5), "1500"),
        (errors.Exhausted("later", retry_after_s=0.25), "250"),
        (errors.InvalidRequest("never", retry_after_s=1.0), None),
    ],
)
async def test_retryable_errors_say_when(start: Start, error: Exception, hint: str | None) -> None:
    _, channel = await start(Generation(error))
    for status_of in (status_of_unary, status_of_stream):
        status = await status_of(channel)
        assert dict(status.trailing_metadata()).get(PUSHBACK_KEY) == hint


async def test_a_message_too_long_for_the_trailers_is_cut(start: Start) -> None:
    _, channel = await start(Generation(errors.InvalidRequest("ü" * 100_000)))
    assert (await status_of_unary(channel)).details() == "ü" * 1000


async def test_bidirectional_streams_answer_and_fail(start: Start) -> None:
    _, channel = await start()
    call = executor_pb2_grpc.ExecutorServiceStub(channel).Execute()
    for step in (1, 2):
        await call.write(executor_pb2.ExecuteRequest(plan=executor_pb2.StepPlan(step=step)))
        assert (await call.read()).result.step == step
    await call.write(executor_pb2.ExecuteRequest(plan=executor_pb2.StepPlan(step=3)))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read()
    assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_bidirectional_stream_ends_with_the_client(start: Start) -> None:
    _, channel = await start()
    call = executor_pb2_grpc.ExecutorServiceStub(channel).Execute()
    await call.write(executor_pb2.ExecuteRequest(plan=executor_pb2.StepPlan(step=1)))
    await call.done_writing()
    assert [response.result.step async for response in call] == [1]
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("read", [1, 5])
async def test_a_cancelled_call_closes_its_servicer(start: Start, read: int) -> None:
    """Also where the reader is slow and the servicer waits for it, and without a line in the log."""
    servicer = Generation()
    _, channel = await start(servicer)
    call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(generation_pb2.GenerateRequest())
    for _ in range(read):
        await call.read()
    with capture_logs() as logged:
        await asyncio.sleep(0.2)  # flow control now holds the servicer in its next message
        call.cancel()
        await asyncio.wait_for(servicer.closed.wait(), 30)
    assert logged == []


async def test_a_message_over_the_limit_is_refused_and_one_under_it_is_not(start: Start) -> None:
    _, channel = await start()
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    fits = LIMIT - 4  # tag and three bytes of length
    assert (await stub.CountTokens(generation_pb2.CountTokensRequest(text="x" * fits))).num_tokens == fits
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.CountTokens(generation_pb2.CountTokensRequest(text="x" * (fits + 1)))
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_what_the_server_says_may_be_larger_than_what_it_takes(start: Start) -> None:
    _, channel = await start(Generation(word="x" * (LIMIT + 1)))
    call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(generation_pb2.GenerateRequest())
    assert (await call.read()).text == "x" * (LIMIT + 1)
    call.cancel()


@pytest.mark.parametrize("method", [f"{GENERATION}/CountTokens", f"{GENERATION}/Generate", f"{EXECUTOR}/Execute"])
async def test_bytes_that_are_no_message_fail_their_call_only(start: Start, method: str) -> None:
    _, channel = await start()
    for garbage in (b"\x80\x04\x95\x00\x00", b"\xff" * 1000, b"\x0a\xff"):
        call = channel.unary_unary(f"/{method}")(garbage)
        with pytest.raises(grpc.aio.AioRpcError) as failure, capture_logs() as logged:
            await call
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert failure.value.details() == "what was sent is not a message of this method"
        assert logged == []
    stub = generation_pb2_grpc.GenerationServiceStub(channel)
    assert (await stub.CountTokens(generation_pb2.CountTokensRequest(text="four"))).num_tokens == 4


async def test_bytes_that_are_no_http_close_their_connection_only() -> None:
    server = GrpcServer("127.0.0.1:0", services=[], max_message_bytes=LIMIT)
    port = await server.start()
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x04\x95" + b"\x00" * 5000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(garbage)
        await asyncio.wait_for(reader.read(), 60)
        writer.close()
    await server.set_serving(True)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert answer.status == SERVING
    await server.server.stop(None)


async def test_health_is_not_serving_until_told(start: Start) -> None:
    server, channel = await start()
    stub = health_pb2_grpc.HealthStub(channel)
    for serving, status in ((None, NOT_SERVING), (True, SERVING), (False, NOT_SERVING), (True, SERVING)):
        if serving is not None:
            await server.set_serving(serving)
        for service in ("", GENERATION, EXECUTOR):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == status
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.Check(health_pb2.HealthCheckRequest(service="no.such.Service"))
    assert failure.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_can_be_watched(start: Start) -> None:
    server, channel = await start()
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=GENERATION))
    assert (await watch.read()).status == NOT_SERVING
    await server.set_serving(True)
    assert (await watch.read()).status == SERVING


async def test_reflection_describes_every_service() -> None:
    server = GrpcServer("127.0.0.1:0", services=[GENERATION, EXECUTOR], max_message_bytes=LIMIT)
    port = await server.start()

    def ask() -> tuple[set[str], list[str]]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            file = database.FindFileContainingSymbol(GENERATION)
            return set(database.get_services()), [method.name for method in file.service[0].method]

    services, methods = await asyncio.to_thread(ask)
    await server.server.stop(None)
    assert services == {GENERATION, EXECUTOR, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert methods == ["Generate", "Attach", "Cancel", "ListModels", "CountTokens"]


async def test_a_second_server_on_the_port_cannot_start() -> None:
    first = GrpcServer("127.0.0.1:0", services=[], max_message_bytes=LIMIT)
    address = f"127.0.0.1:{await first.start()}"
    second = GrpcServer(address, services=[], max_message_bytes=LIMIT)
    with pytest.raises(errors.StartupError) as refusal:
        await second.start()
    assert str(refusal.value) == (
        f"cannot listen on {address}: Address already in use; stop what holds it, or choose another address with"
        " --listen"
    )
    await first.server.stop(None)
    third = GrpcServer(address, services=[], max_message_bytes=LIMIT)
    assert f"127.0.0.1:{await third.start()}" == address
    await third.server.stop(None)


async def test_a_port_taken_between_the_check_and_the_start_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that gRPC itself does not share the port."""
    first = GrpcServer("127.0.0.1:0", services=[], max_message_bytes=LIMIT)
    address = f"127.0.0.1:{await first.start()}"
    monkeypatch.setattr("common.address.check_free", lambda *_: None)
    with pytest.raises(errors.StartupError, match=f"cannot listen on {address}: "):
        await GrpcServer(address, services=[], max_message_bytes=LIMIT).start()
    await first.server.stop(None)


async def test_a_client_that_keeps_the_connection_alive_is_not_sent_away() -> None:
    """Four pings without a call: a server with gRPC's defaults answers the third with "too many pings"."""
    server = GrpcServer("127.0.0.1:0", services=[GENERATION], max_message_bytes=LIMIT)
    options = [
        ("grpc.keepalive_time_ms", 2600),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{await server.start()}", options) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.wait_for_state_change(grpc.ChannelConnectivity.READY), 11)
        assert channel.get_state() is grpc.ChannelConnectivity.READY
    await server.server.stop(None)


class Endless(generation_pb2_grpc.GenerationServiceServicer):
    """Says one word and nothing more, until it is closed."""

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> Words:
        yield generation_pb2.GenerateResponse(text="word")
        await asyncio.Event().wait()


async def code_of(stub: Any) -> grpc.StatusCode:
    """How a call of a method that is not there ends, where there is a place for it."""
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await stub.CountTokens(generation_pb2.CountTokensRequest())
    return refusal.value.code()


def own_channel(port: int) -> grpc.aio.Channel:
    """A channel with a connection of its own."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)])


async def test_calls_are_bounded_and_no_connection_takes_more_than_half() -> None:
    server = GrpcServer("127.0.0.1:0", services=[GENERATION], max_message_bytes=LIMIT, max_calls=4)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(Endless(), server.server)
    port = await server.start()
    channels = [own_channel(port) for _ in range(3)]
    stubs = [generation_pb2_grpc.GenerationServiceStub(channel) for channel in channels]
    calls = [stub.Generate(generation_pb2.GenerateRequest()) for stub in stubs[:2] for _ in range(2)]
    assert [(await call.read()).text for call in calls] == ["word"] * 4
    third = stubs[0].Generate(generation_pb2.GenerateRequest())
    waiting = asyncio.create_task(third.read())
    assert await code_of(stubs[2]) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not waiting.done(), "it waits in its client, for a place in its connection"
    calls[2].cancel()
    while (await code_of(stubs[2])) is grpc.StatusCode.RESOURCE_EXHAUSTED:
        await asyncio.sleep(0.01)
    calls[0].cancel()
    assert (await asyncio.wait_for(waiting, 30)).text == "word"
    for channel in channels:
        await channel.close()
    await server.server.stop(None)


async def test_connections_are_bounded() -> None:
    server = GrpcServer("127.0.0.1:0", services=[GENERATION], max_message_bytes=LIMIT, max_connections=3)
    port = await server.start()
    pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    for reader, _ in pairs:
        assert await reader.read(9), "the settings of HTTP/2"
    turned_away, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await asyncio.wait_for(turned_away.read(), 30) == b""
    for each in (writer, *(other for _, other in pairs)):
        each.close()
    async with own_channel(port) as channel:
        await asyncio.wait_for(channel.channel_ready(), 30)
    await server.server.stop(None)


class Refusal(errors.InvalidRequest):
    """Told from those of other tests."""


class Refusing(generation_pb2_grpc.GenerationServiceServicer):
    """Refuses every call, each with an error of its own."""

    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> Words:
        yield generation_pb2.GenerateResponse(text="word")
        raise Refusal("a message")

    async def CountTokens(self, request: generation_pb2.CountTokensRequest, context: Context) -> NoReturn:
        raise Refusal("a message")


async def test_F41_refused_request_is_not_kept() -> None:
    """Not even until the garbage collector comes: it is called for many objects, and not for large ones."""
    server = GrpcServer("127.0.0.1:0", services=[GENERATION], max_message_bytes=LIMIT)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(Refusing(), server.server)
    gc.disable()
    try:
        async with own_channel(await server.start()) as channel:
            for status_of in (status_of_unary, status_of_stream):
                assert (await status_of(channel)).code() is grpc.StatusCode.INVALID_ARGUMENT
            assert not [each for each in gc.get_objects() if type(each) is Refusal]
    finally:
        gc.enable()
    await server.server.stop(None)
