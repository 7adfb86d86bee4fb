"""What the server says of itself while a load runs, read again and again through its admin service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import grpc

from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc as pb_grpc
from citybus.bench.measures import Window
from citybus.connection import open_aio_channel
from citybus.errors import CitybusError, from_rpc
from citybus.failure import Failure
from citybus.tls import Tls

READ_INTERVAL_S = 0.05
"""Seconds between two readings."""

_TIMEOUT_S = 10.0
_IDLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading at `at`, in seconds of the load's clock.

    Reserved slots and seats are those that nobody else gets: the held ones, or what the policy sets aside. The last
    three are totals since the server's start.
    """

    at: float
    policy: str
    running: int
    waiting: int
    tokens_held: int
    slots_held: int
    slots_reserved: int
    seats_reserved: int
    prompt_tokens: int
    cached_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class Pool:
    """A KV pool of `num_blocks` blocks of `block_size` tokens, and the seats that share it."""

    num_blocks: int
    block_size: int
    max_running: int

    @property
    def num_tokens(self) -> int:
        """Tokens it can hold."""
        return self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True)
class ServerSummary:
    """The server within a window; shares are 0 to 1, None where there was nothing to share.

    `kv_utilisation` is tokens stored / token slots that are held, or reserved by the policy; `idle_seats` the share of
    reserved seats in which nobody sits: both over all readings. `hit_rate` is the share of prompt tokens found in the
    prefix cache. `running` and `waiting` are means.
    """

    readings: int
    kv_utilisation: float | None
    idle_seats: float | None
    hit_rate: float | None
    preemptions: int
    running: float
    most_running: int
    waiting: float
    most_waiting: int


def summary_of(readings: Sequence[Reading], window: Window) -> ServerSummary | None:
    """The readings within the window; None where there are none."""
    within = [reading for reading in readings if window.holds(reading.at)]
    if not within:
        return None
    first, last = within[0], within[-1]
    slots = sum(reading.slots_reserved for reading in within)
    seats = sum(reading.seats_reserved for reading in within)
    prompts = last.prompt_tokens - first.prompt_tokens
    return ServerSummary(
        readings=len(within),
        kv_utilisation=sum(reading.tokens_held for reading in within) / slots if slots else None,
        idle_seats=1 - sum(reading.running for reading in within) / seats if seats else None,
        hit_rate=(last.cached_tokens - first.cached_tokens) / prompts if prompts else None,
        preemptions=last.preemptions - first.preemptions,
        running=sum(reading.running for reading in within) / len(within),
        most_running=max(reading.running for reading in within),
        waiting=sum(reading.waiting for reading in within) / len(within),
        most_waiting=max(reading.waiting for reading in within),
    )


class Observer:
    """Reads a scheduler's state through its admin address."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.address = address
        self.readings: list[Reading] = []
        self._channel = open_aio_channel(address, tls=tls)
        self._stub: pb_grpc.AdminServiceAsyncStub = pb_grpc.AdminServiceStub(self._channel)
        self._task: asyncio.Task[None] | None = None

    def start(self, clock: Callable[[], float]) -> None:
        """Read from now on, by this clock."""
        self._task = asyncio.create_task(self._read(clock))

    async def _read(self, clock: Callable[[], float]) -> None:
        while True:
            with contextlib.suppress(CitybusError):  # a server that is busy or away has no reading
                self.readings.append(_reading(clock(), await self._status()))
            await asyncio.sleep(READ_INTERVAL_S)

    async def wait_idle(self) -> None:
        """Return once nothing runs or waits. Raises `CitybusError`, and `Failure` after a minute."""
        try:
            async with asyncio.timeout(_IDLE_S):
                while (status := await self._status()).running or status.waiting or status.pool.held:
                    await asyncio.sleep(READ_INTERVAL_S)
        except TimeoutError as error:
            raise Failure("the server is busy with requests of others: measure it when it is idle") from error

    async def pool(self) -> Pool:
        """The size of the KV pool. Raises `CitybusError`."""
        status = await self._status()
        pool = status.pool
        return Pool(pool.free + pool.cached + pool.held, pool.block_size, status.max_running)

    async def close(self) -> None:
        """Stop reading and close the connection."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._channel.close()

    async def _status(self) -> pb.GetStatusResponse:
        try:
            return await self._stub.GetStatus(pb.GetStatusRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error, self.address) from error


@contextlib.asynccontextmanager
async def observing(address: str, tls: Tls | None) -> AsyncIterator[Observer]:
    """An observer that is closed at the end."""
    observer = Observer(address, tls)
    try:
        yield observer
    finally:
        await observer.close()


def _reading(at: float, status: pb.GetStatusResponse) -> Reading:
    pool, totals = status.pool, status.totals
    return Reading(
        at=at,
        policy=status.policy,
        running=status.running,
        waiting=status.waiting,
        tokens_held=pool.tokens_held,
        slots_held=pool.held * pool.block_size,
        slots_reserved=pool.reserved * pool.block_size,
        seats_reserved=status.reserved_seats,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        preemptions=totals.preemptions,
    )
