"""Five hundred cancels in every phase, and an executor killed in the middle: nobody else notices."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from citybus import AsyncClient, Cancelled, Client, Unavailable
from citybus.async_stream import AsyncStream
from citybus.requests import RequestOptions
from tests.e2e.plan_log import journeys
from tests.harness import Bus, canary, running_bus

T = TypeVar("T")

CANCELS_IN_A_PHASE = 120
CANCELS_WHILE_THE_EXECUTOR_IS_AWAY = 20
NEIGHBOURS = 150
AT_ONCE = 64
STEMS = [[(stem + 5 * position) % 250 for position in range(48)] for stem in (1, 2, 3)]


def kinds(chance: random.Random) -> list[RequestOptions]:
    """Requests of many lengths, greedy and drawn, with and without a common beginning, some prefilled in chunks."""
    return [
        {
            "token_ids": [*chance.choice(STEMS)[: chance.choice([0, 15, 16, 17, 48])], *range(kind, length)],
            "temperature": chance.choice([0.0, 0.8]),
            "seed": kind,
            "max_tokens": chance.choice([1, 17, 33, 60]),
            "ignore_eos": True,
        }
        for kind, length in enumerate([*range(1, 21), 120, 120, 150, 150])
    ]


async def at_once(stream: AsyncStream, chance: random.Random) -> None:
    """Before the server has said anything."""
    await asyncio.sleep(0.01 * chance.random())


async def queued(stream: AsyncStream, chance: random.Random) -> None:
    """As soon as the server has accepted it: most wait for a seat."""
    await stream.request_id()


async def prefilled(stream: AsyncStream, chance: random.Random) -> None:
    """Right after the first token."""
    await anext(stream)


async def decoding(stream: AsyncStream, chance: random.Random) -> None:
    """After a few tokens."""
    for _ in range(chance.randrange(2, 40)):
        await anext(stream)


PHASES = (at_once, queued, prefilled, decoding)


async def accepted(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again while the server takes no requests, its executor being away; who was accepted must get an answer."""
    while True:
        try:
            return await ask()
        except Unavailable as refusal:
            assert refusal.request_id is None, "an accepted request failed"
        await asyncio.sleep(0.05)


class Storm:
    """Requests that leave and requests that stay, `AT_ONCE` at a time."""

    def __init__(self, bus: Bus, requests: list[RequestOptions], expected: list[tuple[int, ...]], seed: int) -> None:
        self.cancelled: Counter[str] = Counter()
        self.answered = 0
        self._bus = bus
        self._requests = requests
        self._expected = expected
        self._chance = random.Random(seed)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._half = asyncio.Event()

    async def run(self) -> None:
        """All of it, with the crash once half of the cancels are done."""
        async with AsyncClient(self._bus.address) as client:
            work = [self._leave(client, phase) for phase in PHASES for _ in range(CANCELS_IN_A_PHASE)]
            work += [self._stay(client, index % len(self._requests)) for index in range(NEIGHBOURS)]
            self._chance.shuffle(work)
            await asyncio.gather(self._crash(client), *work)

    async def _leave(self, client: AsyncClient, phase: Callable[[AsyncStream, random.Random], Awaitable[None]]) -> None:
        request = self._long()

        async def ask() -> None:
            async with client.generate(**request) as stream:
                await phase(stream, self._chance)
                await self._cancel(stream, phase.__name__)

        async with self._places:
            await accepted(ask)

    async def _stay(self, client: AsyncClient, kind: int) -> None:
        async with self._places:
            completion = await accepted(lambda: client.complete(**self._requests[kind]))
        assert completion.token_ids == self._expected[kind], f"request {kind} left REF"
        self.answered += 1

    async def _crash(self, client: AsyncClient) -> None:
        """Kill the executor while it decodes, have clients leave while it is away, and start it again."""
        await self._half.wait()
        streams = [client.generate(**self._long()) for _ in range(CANCELS_WHILE_THE_EXECUTOR_IS_AWAY)]
        await anext(streams[0])
        assert await streams[-1].request_id()
        await asyncio.to_thread(self._bus.executor.kill)
        for stream in streams:
            await self._cancel(stream, "away")
        await asyncio.to_thread(self._bus.executor.restart)

    async def _cancel(self, stream: AsyncStream, phase: str) -> None:
        stream.cancel()
        stream.cancel()
        with pytest.raises(Cancelled):
            async for _ in stream:
                pass
        self.cancelled[phase] += 1
        if self.cancelled.total() >= len(PHASES) * CANCELS_IN_A_PHASE // 2:
            self._half.set()

    def _long(self) -> RequestOptions:
        """A request that is far from its end when it is cancelled."""
        request = self._chance.choice(self._requests).copy()
        request["max_tokens"] = 90
        return request


async def test_cancels_and_a_crash_leave_everybody_else_with_their_tokens(tiny: Path, tmp_path: Path) -> None:
    requests = kinds(random.Random(11))
    flags = ("--num-blocks", "24", "--max-sequences", "12", "--max-step-tokens", "64", "--num-threads", "1")
    with running_bus(tiny, tmp_path, executor=flags, scheduler=("--executor-timeout", "120")) as bus:
        with Client(bus.address) as client:
            expected = [
                client.complete(**(request | {"cache_salt": f"alone {kind}"})).token_ids
                for kind, request in enumerate(requests)
            ]
            before = canary(client)
        storm = Storm(bus, requests, expected, seed=12)
        await storm.run()
        bus.wait_idle(2.0)
        check_storm(bus, storm)
        with Client(bus.address) as client:
            canary(client, before.token_ids)


def check_storm(bus: Bus, storm: Storm) -> None:
    """It was a storm, and it left no trace."""
    assert storm.cancelled == {phase.__name__: CANCELS_IN_A_PHASE for phase in PHASES} | {
        "away": CANCELS_WHILE_THE_EXECUTOR_IS_AWAY
    }
    assert storm.cancelled.total() == 500
    assert storm.answered == NEIGHBOURS
    totals, plans = bus.status().totals, bus.plans()
    assert totals.accepted == totals.finished
    assert len(journeys(plans)) < totals.accepted, "nobody left while in the queue"
    assert any(plan["preempted"] for plan in plans), "the pool was never full"
    assert any(plan["copies"] for plan in plans), "no block was shared in part"
    assert len(bus.scheduler.events("executor connected")) == 2, "the crash was noticed, and once"
    events = [*bus.scheduler.events(), *bus.executor.events()]
    assert not [event for event in events if event["level"] == "error"]
