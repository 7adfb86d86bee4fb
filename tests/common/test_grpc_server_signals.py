"""The end of a server: signals sent to a real process."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citybus.v1 import generation_pb2, generation_pb2_grpc

PROGRAM = """
import asyncio, sys, time
from citybus.v1 import generation_pb2, generation_pb2_grpc
from common import log
from common.grpc_server import GrpcServer

class Generation(generation_pb2_grpc.GenerationServiceServicer):
    def __init__(self):
        self.stop = asyncio.Event()
        self.idle = asyncio.Event()

    async def Generate(self, request, context):
        yield generation_pb2.GenerateResponse(text="first")
        if request.text == "hang":
            await asyncio.Event().wait()
        await self.stop.wait()
        yield generation_pb2.GenerateResponse(text="last")
        self.idle.set()

async def main(drain, grace_s):
    generation = Generation()
    server = GrpcServer("127.0.0.1:0", services=["citybus.v1.GenerationService"], max_message_bytes=1 << 20)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server.server)
    port = await server.start()
    await server.set_serving(True)

    async def idle():
        pass

    async def finish():
        print("draining", flush=True)
        await server.set_serving(True)  # what a service does whose executor comes back; the drain stands
        await asyncio.to_thread(sys.stdin.readline)
        generation.stop.set()
        await generation.idle.wait()

    async def never():
        print("draining", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print("cut", flush=True)

    async def block():
        print("draining", flush=True)
        time.sleep(600)

    asyncio.get_running_loop().call_soon(lambda: print(port, flush=True))  # once it listens to signals
    await server.run_until_signal(locals()[drain], float(grace_s))
    print("ended", flush=True)

log.configure("bus", "info")
asyncio.run(main(*sys.argv[1:]))
"""


class Bus:
    """A server process and a channel to it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)

    async def line(self) -> str:
        assert self.process.stdout
        return (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().strip()

    async def health(self) -> int:
        return (await health_pb2_grpc.HealthStub(self.channel).Check(health_pb2.HealthCheckRequest())).status

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 60)


Drive = Callable[[str, float], Awaitable[Bus]]


@pytest.fixture
async def drive() -> AsyncIterator[Drive]:
    """Starts a server whose drain is one of `PROGRAM`'s, with a grace in seconds."""
    buses: list[Bus] = []

    async def start(drain: str, grace_s: float) -> Bus:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, drain, str(grace_s)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout
        bus = Bus(process, int(await asyncio.wait_for(process.stdout.readline(), 60)))
        buses.append(bus)
        return bus

    yield start
    for bus in buses:
        await bus.channel.close()
        if bus.process.returncode is None:
            bus.process.kill()
        await bus.process.communicate()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_one_signal_ends_an_idle_server_in_order(drive: Drive, signum: signal.Signals) -> None:
    bus = await drive("idle", 30)
    assert await bus.health() == health_pb2.HealthCheckResponse.SERVING
    bus.process.send_signal(signum)
    assert await bus.line() == "ended"
    assert await bus.exit_code() == 0


async def test_running_streams_end_normally_while_health_says_not_serving(drive: Drive) -> None:
    bus = await drive("finish", 60)
    call = bus.generation.Generate(generation_pb2.GenerateRequest())
    assert (await call.read()).text == "first"
    bus.process.send_signal(signal.SIGTERM)
    assert await bus.line() == "draining"
    assert await bus.health() == health_pb2.HealthCheckResponse.NOT_SERVING
    assert bus.process.stdin
    bus.process.stdin.write(b"\n")
    assert (await call.read()).text == "last"
    assert await call.read() == grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    assert await bus.exit_code() == 0


async def test_a_watcher_of_health_sees_the_drain_and_holds_up_nothing(drive: Drive) -> None:
    bus = await drive("idle", 600)
    watch = health_pb2_grpc.HealthStub(bus.channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    bus.process.send_signal(signal.SIGTERM)
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await bus.exit_code() == 0


async def test_a_drain_past_its_grace_is_cut(drive: Drive) -> None:
    bus = await drive("never", 0.3)
    call = bus.generation.Generate(generation_pb2.GenerateRequest(text="hang"))
    assert (await call.read()).text == "first"
    bus.process.send_signal(signal.SIGTERM)
    assert [await bus.line() for _ in range(2)] == ["draining", "cut"]
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call.read()
    assert failure.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    assert await bus.line() == "ended"
    assert await bus.exit_code() == 0


@pytest.mark.parametrize("drain", ["never", "block"])
@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_a_second_signal_ends_the_process_at_once(
    drive: Drive, drain: str, second: signal.Signals, code: int
) -> None:
    """Even where the event loop is blocked."""
    bus = await drive(drain, 600)
    bus.process.send_signal(signal.SIGTERM)
    assert await bus.line() == "draining"
    bus.process.send_signal(second)
    assert await bus.exit_code() == code
