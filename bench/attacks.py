"""What hostile clients do to a server: `python -m bench.attacks NAME ADDRESS WINDOW_S`.

Each attack says "ready" once it is set up, and goes on for the window, or until it is stopped; its process stays until
its input ends, so that its CPU time can be read. None needs more than a connection: no key, no model, no cleverness.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from bench.http2_client import DATA, END_HEADERS, GENERATE, HEADERS, PING, PREFACE, SETTINGS, frame, header_block
from citybus.v1 import generation_pb2 as pb

SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
MAX_FRAME_BYTES = 16_384
LONGEST = pb.StopParams(ignore_eos=True)
LARGE_BYTES = 4_000_000
"""As large as a server takes of most models, and far more than fits a context of 8,192."""
GB = 10**9

Ready = Callable[[], None]


async def slow_reader(address: str, window_s: float, ready: Ready) -> None:
    """One of `slow_readers`."""
    await slow_readers(address, window_s, ready, count=1)


async def slow_readers(address: str, window_s: float, ready: Ready, *, count: int = 16) -> None:
    """Answers as long as the model allows, of which nothing is read."""
    with _calls(address, count, LONGEST, channels=1) as calls:
        await asyncio.gather(*(call.initial_metadata() for call in calls))
        ready()
        await asyncio.sleep(window_s)


async def readers(address: str, window_s: float, ready: Ready, *, count: int = 16) -> None:
    """No attack, but what slow readers are to be compared with: the same answers, read as they come."""
    with _calls(address, count, LONGEST, channels=1) as calls:
        await asyncio.gather(*(call.initial_metadata() for call in calls))
        ready()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(window_s):
                await asyncio.gather(*map(_read, calls))


async def idle_streams(address: str, window_s: float, ready: Ready, *, count: int = 1_000) -> None:
    """Calls whose short answers are never read, and as many connections that say nothing after their first words."""
    async with contextlib.AsyncExitStack() as stack:
        calls = stack.enter_context(_calls(address, count, pb.StopParams(max_tokens=4, ignore_eos=True), channels=10))
        await asyncio.gather(*(call.initial_metadata() for call in calls))
        for _ in range(count):
            await stack.enter_async_context(connection(address))
        ready()
        await asyncio.sleep(window_s)


async def dropped_connections(address: str, window_s: float, ready: Ready, *, count: int = 10_000) -> None:
    """Connections that are opened and dropped, evenly over the window."""
    ready()
    async with _paced(count, window_s) as turns:
        async for _ in turns:
            async with connection(address):
                pass


async def endless_prompt(address: str, window_s: float, ready: Ready, *, count: int = 10) -> None:
    """Messages that announce 1 GB, and send what the server takes of it."""
    ready()
    async with _paced(count, window_s) as turns:
        async for _ in turns:
            async with connection(address) as (reader, writer):
                writer.write(announced_gigabyte())
                chunk = frame(DATA, 0, 1, bytes(MAX_FRAME_BYTES))
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(window_s / count):
                        while not reader.at_eof():
                            writer.write(chunk)
                            await writer.drain()
                            await asyncio.sleep(0)


async def oversize_prompts(address: str, window_s: float, ready: Ready, *, count: int = 10) -> None:
    """Texts of 15 MB: more than the server takes in one message."""
    await _send(address, window_s, ready, count, pb.GenerateRequest(text="word " * 3_000_000).SerializeToString())


async def large_prompts(address: str, window_s: float, ready: Ready, *, count: int = 10) -> None:
    """Texts as large as the server takes."""
    text = "word " * (LARGE_BYTES // 5)
    await _send(address, window_s, ready, count, pb.GenerateRequest(text=text).SerializeToString())


async def large_chats(address: str, window_s: float, ready: Ready, *, count: int = 10) -> None:
    """Conversations as large, in which every character could begin a control token of most models."""
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="<" * LARGE_BYTES)])
    await _send(address, window_s, ready, count, pb.GenerateRequest(chat=chat).SerializeToString())


async def million_messages(address: str, window_s: float, ready: Ready, *, count: int = 10) -> None:
    """Conversations of a million empty messages."""
    chat = pb.ChatPrompt(messages=[pb.ChatMessage()] * 1_000_000)
    await _send(address, window_s, ready, count, pb.GenerateRequest(chat=chat).SerializeToString())


async def billion_answers(address: str, window_s: float, ready: Ready, *, count: int = 100) -> None:
    """Requests for 10^9 answers at once."""
    raw = pb.GenerateRequest(text="x", samples=pb.SampleParams(n=10**9)).SerializeToString()
    await _send(address, window_s, ready, count, raw)


async def pings(address: str, window_s: float, ready: Ready, *, count: int = 100) -> None:
    """Connections that ping as fast as they can until they are sent away."""
    ready()
    async with _paced(count, window_s) as turns:
        async for _ in turns:
            async with connection(address) as (reader, writer):
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(window_s / count):
                        while not reader.at_eof():
                            writer.write(frame(PING, 0, 0, bytes(8)) * 100)
                            await writer.drain()
                            await reader.read(1 << 16)


ATTACKS: dict[str, Callable[..., Coroutine[Any, Any, object]]] = {
    attack.__name__: attack
    for attack in (
        *(slow_reader, slow_readers, readers, idle_streams, dropped_connections, endless_prompt),
        *(oversize_prompts, large_prompts, large_chats, million_messages, billion_answers, pings),
    )
}


@contextmanager
def _calls(address: str, count: int, stopping: pb.StopParams, *, channels: int) -> Iterator[list[Any]]:
    """Calls of which nothing is read, over so many connections; cancelled at the end."""
    options = [*SMALL_WINDOW, ("grpc.use_local_subchannel_pool", 1)]
    opened = [grpc.aio.insecure_channel(address, options) for _ in range(channels)]
    request = pb.GenerateRequest(tokens=pb.TokenPrompt(ids=[1]), stopping=stopping).SerializeToString()
    methods: list[Any] = [channel.unary_stream(GENERATE) for channel in opened]
    calls: list[Any] = [methods[index % channels](request) for index in range(count)]
    try:
        yield calls
    finally:
        for call in calls:
            call.cancel()


async def _send(address: str, window_s: float, ready: Ready, count: int, request: bytes) -> None:
    """The same refused request again and again, evenly over the window."""
    async with grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        method: Any = channel.unary_stream(GENERATE)
        ready()
        async with _paced(count, window_s) as turns:
            async for _ in turns:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await _read(method(request))


async def _read(call: Any) -> None:
    """All that comes."""
    async for _ in call:
        pass


@asynccontextmanager
async def _paced(count: int, window_s: float) -> AsyncIterator[AsyncIterator[int]]:
    """`count` turns, one each `window_s / count` seconds, or later where one takes longer; they end with the window."""

    async def turns() -> AsyncGenerator[int, None]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for turn in range(count):
            await asyncio.sleep(max(0.0, started + turn * window_s / count - loop.time()))
            if loop.time() > started + window_s:
                return
            yield turn

    async with contextlib.aclosing(turns()) as generator:
        yield generator


@asynccontextmanager
async def connection(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """An HTTP/2 connection that has said its first words; dropped at the end."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b""))
        yield reader, writer
    finally:
        writer.transport.abort()


def announced_gigabyte() -> bytes:
    """The frames of a call of Generate up to the head of its message, which says that 1 GB follows."""
    head = frame(HEADERS, END_HEADERS, 1, header_block(GENERATE, "hostile"))
    return head + frame(DATA, 0, 1, struct.pack(">BI", 0, GB))


if __name__ == "__main__":
    name, target, seconds = sys.argv[1:]
    asyncio.run(ATTACKS[name](target, float(seconds), lambda: print("ready", flush=True)))
    sys.stdin.read()
