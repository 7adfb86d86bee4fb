"""Five hundred cancels in every phase and a crash of the executor in the middle: nobody else notices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from citybus import AsyncClient, Client, Unavailable
from tests.harness import Bus, canary, running_bus

T = TypeVar("T")

CANCELS = 500
NEIGHBOURS = 120
STEMS = [[(stem + 5 * position) % 250 for position in range(48)] for stem in (1, 2, 3)]


def kinds(chance: random.Random) -> list[dict[str, Any]]:
    """Requests of many lengths, greedy and drawn, with and without a common beginning."""
    return [
        {
            "token_ids": [*chance.choice(STEMS)[: chance.choice([0, 15, 16, 17, 48])], kind],
            "temperature": chance.choice([0.0, 0.8]),
            "seed": kind,
            "max_tokens": chance.choice([1, 8, 33, 60]),
            "ignore_eos": True,
        }
        for kind in range(24)
    ]


async def accepted(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer, asked for again while the server refuses because its executor is away; who is in must get through."""
    while True:
        try:
            return await ask()
        except Unavailable as refusal:
            assert refusal.request_id is None, "an accepted request failed"
        await asyncio.sleep(0.1)


class Storm:
    """All at once, a bounded number at a time. `compared` counts the answers that were held against REF."""

    def __init__(self, bus: Bus, asked: list[dict[str, Any]], expected: list[tuple[int, ...]]) -> None:
        self.compared = 0
        self._bus = bus
        self._asked = asked
        self._expected = expected
        self._places = asyncio.Semaphore(48)

    async def run(self, chance: random.Random) -> None:
        """`CANCELS` requests that are cancelled, `NEIGHBOURS` that are not, and a crash after a third of these."""
        async with AsyncClient(self._bus.address) as client:
            work = [self._leave(client, chance.randrange(24), chance.choice([0, 0, 1, 2, 9])) for _ in range(CANCELS)]
            work += [self._stay(client, chance.randrange(24)) for _ in range(NEIGHBOURS)]
            chance.shuffle(work)
            await asyncio.gather(*work, self._crash())

    async def _leave(self, client: AsyncClient, kind: int, after: int) -> None:
        """Read `after` messages, wait up to 50 ms, and go."""

        async def ask() -> None:
            async with client.generate(**(self._asked[kind] | {"max_tokens": 150})) as stream:
                for _ in range(after):
                    await anext(stream)
                await asyncio.sleep(0.002 * (kind + 1))

        async with self._places:
            await accepted(ask)

    async def _stay(self, client: AsyncClient, kind: int) -> None:
        async with self._places:
            completion = await accepted(lambda: client.complete(**self._asked[kind]))
        assert completion.token_ids == self._expected[kind], f"request {kind} left REF"
        self.compared += 1

    async def _crash(self) -> None:
        while self.compared < NEIGHBOURS // 3:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self._bus.executor.kill)
        self._bus.executor.restart()


@pytest.mark.timeout(600)
async def test_cancels_and_a_crash_leave_everybody_else_with_their_tokens(tiny: Path, tmp_path: Path) -> None:
    chance = random.Random(11)
    flags = ("--num-blocks", "48", "--max-sequences", "12", "--max-step-tokens", "64", "--num-threads", "1")
    with running_bus(tiny, tmp_path, executor=flags, scheduler=("--executor-timeout", "120")) as bus:
        asked = kinds(chance)
        with Client(bus.address) as client:
            expected = [client.complete(**one, cache_salt=str(kind)).token_ids for kind, one in enumerate(asked)]
        terms = len(bus.scheduler.events("executor connected"))
        storm = Storm(bus, asked, expected)
        await storm.run(chance)
        assert storm.compared == NEIGHBOURS
        assert len(bus.scheduler.events("executor connected")) == terms + 1, "the crash was noticed, and once"
        bus.wait_idle(2.0)
        totals = bus.status().totals
        assert totals.accepted == totals.finished
        with Client(bus.address) as client:
            canary(client)
