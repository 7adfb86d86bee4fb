"""The policy is swapped every few steps while a full batch runs: no token changes, and no request fails."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from citybus import AsyncClient
from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc
from citybus.requests import RequestOptions
from tests.harness import Bus, running_bus, wait_until

SEATS = 256
REQUESTS = 320
EVERY = 3
"""Steps from swap to swap, at least."""
CYCLE = ("priority", "shortest_first", "longest_prefix_match", "fair_share", "deadline", "static_batch", "fcfs")
STEMS = [[(stem + 5 * position) % 250 for position in range(17)] for stem in (1, 2, 3)]


def request_of(number: int, salt: str) -> RequestOptions:
    """Greedy and seeded ones, with and without a common beginning, of several lengths, tenants and priorities."""
    return {
        "token_ids": [*STEMS[number % 3][: (0, 5, 16, 17)[number % 4]], number % 256, number % 7, *range(number % 7)],
        "temperature": 0.8 if number % 2 else 0.0,
        "seed": number,
        "max_tokens": 40 + 3 * number % 61,
        "ignore_eos": True,
        "cache_salt": salt,
        "tenant": f"tenant-{number % 5}",
        "priority": number % 4,
        "time_limit_ms": 600_000 + 1000 * (number % 11),
    }


@pytest.fixture
def crowded(tiny: Path, tmp_path: Path) -> Iterator[Bus]:
    """A bus whose pool is too small for a full batch: policies choose victims too."""
    flags = ("--num-threads", "1", "--num-blocks", "640", "--max-sequences", str(SEATS), "--max-step-tokens", "512")
    with running_bus(tiny, tmp_path, executor=flags) as bus:
        yield bus


def in_flight(bus: Bus) -> int:
    status = bus.status()
    return status.running + status.waiting


async def ask_all(bus: Bus, salt: str) -> list[tuple[int, ...]]:
    """The tokens of all requests. The executor stands still until all are there, so that the batch gets full."""
    bus.executor.send(signal.SIGSTOP)
    async with AsyncClient(bus.address) as client:
        asking = asyncio.gather(*(client.complete(**request_of(number, salt)) for number in range(REQUESTS)))
        try:
            await asyncio.to_thread(wait_until, lambda: in_flight(bus) == REQUESTS, "all are there", 60)
        finally:
            bus.executor.send(signal.SIGCONT)
        return [answer.token_ids for answer in await asking]


class Swapper:
    """Sets one policy after the other, and listens to what the scheduler says of it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.swaps = 0
        self.rolled_back: list[pb.WatchEventsResponse] = []
        self._stub = admin_pb2_grpc.AdminServiceStub(channel)

    async def swap(self) -> None:
        """Until cancelled."""
        for name in itertools.cycle(CYCLE):
            due = await self._steps() + EVERY
            while await self._steps() < due:
                await asyncio.sleep(0.002)
            await self._stub.SetPolicy(pb.SetPolicyRequest(name=name))
            self.swaps += 1

    async def watch(self) -> None:
        """Until cancelled."""
        async for event in self._stub.WatchEvents(pb.WatchEventsRequest()):
            if event.WhichOneof("event") == "policy_rolled_back":
                self.rolled_back.append(event)

    async def _steps(self) -> int:
        status = await self._stub.GetStatus(pb.GetStatusRequest())
        return int(status.totals.steps)


async def test_tokens_are_the_same_under_swaps_every_few_steps(crowded: Bus) -> None:
    undisturbed = await ask_all(crowded, "undisturbed")
    before = len(crowded.plans())
    async with grpc.aio.insecure_channel(crowded.scheduler.facts["admin_listen"]) as channel:
        swapper = Swapper(channel)
        tasks = [asyncio.create_task(swapper.swap()), asyncio.create_task(swapper.watch())]
        swapped = await ask_all(crowded, "swapped")
        for task in tasks:
            assert task.cancel(), task.exception()
    assert swapped == undisturbed
    assert swapper.rolled_back == []
    plans = crowded.plans()[before:]
    assert swapper.swaps >= 2 * len(CYCLE), "there were not many swaps"
    assert max(len(plan["new"]) + len(plan["scheduled"]) for plan in plans) == SEATS
    assert any(plan["preempted"] for plan in plans), "nobody had to choose a victim"
    crowded.wait_idle()
