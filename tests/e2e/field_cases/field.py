"""What every field case stands on: a bus, a client of it, and the two checks that each test ends with.

The words are those of the cases. REF: the tokens of a request that runs alone on a cold cache. CANARY: a short request
whose tokens are known. IDLE: nothing runs, waits, is held or is resident.
"""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc

from citybus import Client, Completion, Delta, Stream
from citybus.connection import HEALTH_CHECK, HEALTH_REQUEST, SERVING
from citybus.messages import completion_of
from tests.harness import START_S, Bus, Service, canary, running_bus

T = TypeVar("T")

PATIENCE_S = 60.0

WITH_METRICS = ("--metrics-listen", "127.0.0.1:0")


class Ride:
    """An answer under way. `request_id` is known as soon as the server has accepted the request, None if it did not."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.request_id = stream.request_id()
        self.deltas: list[Delta] = []

    def read_some(self, num_tokens: int) -> None:
        """Read on until there are `num_tokens`, or the answer ends."""
        while sum(len(delta.token_ids) for delta in self.deltas) < num_tokens:
            delta = next(self.stream, None)
            if delta is None:
                return
            self.deltas.append(delta)

    def read(self) -> Completion:
        """The whole answer, which has no gap and no repeat."""
        self.deltas += self.stream
        completion = completion_of(self.deltas, self.stream.finish, self.request_id)
        starts = accumulate((len(delta.token_ids) for delta in self.deltas), initial=0)
        assert [delta.first_index for delta in self.deltas] == list(starts)[:-1]
        assert completion.finish.usage.completion_tokens == len(completion.token_ids)
        return completion


class Field:
    """A running bus with a client. `check` is CANARY and IDLE."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.client = Client(bus.address)
        self.known = canary(self.client).token_ids
        self._references: dict[str, tuple[int, tuple[int, ...]]] = {}

    def start(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> Ride:
        """A greedy answer of exactly `max_tokens` tokens, unless `options` say otherwise, begun once it is accepted."""
        options = GREEDY | {"token_ids": prompt, "max_tokens": max_tokens} | options
        return Ride(self.client.generate(**options))

    def ask(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> Completion:
        """The whole of what `start` begins."""
        return self.start(prompt, max_tokens, **options).read()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The executor stands still: what is started inside begins to run together, in its order."""
        self.bus.executor.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.bus.executor.send(signal.SIGCONT)

    def reference(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> tuple[int, ...]:
        """REF, to be called while nothing else runs. What was found before, with no salt given, is not asked again."""
        if "cache_salt" in options:
            return self._cold(prompt, max_tokens, **options)
        asked = repr((list(prompt), sorted(options.items())))
        length, tokens = self._references.get(asked, (0, ()))
        if length < max_tokens:
            length, tokens = max_tokens, self._cold(prompt, max_tokens, cache_salt=uuid.uuid4().hex, **options)
            self._references[asked] = length, tokens
        return tokens[:max_tokens]

    def _cold(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> tuple[int, ...]:
        """The answer under a salt that nobody has used: it makes the cache cold."""
        completion = self.ask(prompt, max_tokens, **options)
        assert completion.finish.usage.cached_tokens == 0
        return completion.token_ids

    def check(self) -> None:
        """CANARY and IDLE."""
        canary(self.client, self.known)
        self.bus.wait_idle()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric of the scheduler over all samples that have `labels`; 0 where there is none."""
        return self.bus.scheduler.metric(name, **labels)


GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


class HasAddress(Protocol):
    """Where an executor listens: a `Service`, or `InProcess`."""

    @property
    def address(self) -> str:
        """As "host:port"."""


@dataclass(frozen=True)
class InProcess:
    """A server in the process of the test."""

    address: str


class SchedulerBus(Bus):
    """A bus whose executor is another one's: a scheduler that takes it over, and is all that `close` ends."""

    def __init__(self, model: Path, folder: Path, executor: HasAddress, *scheduler: object) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.plan_log = folder / "plans.jsonl"
        self.executor = executor  # type: ignore[assignment]
        self.scheduler = Service(
            "scheduler_svc",
            folder / "scheduler.log",
            *("--model", str(model), "--executor", executor.address, "--admin-listen", "127.0.0.1:0"),
            *("--plan-log", str(self.plan_log), *WITH_METRICS, *map(str, scheduler)),
        )

    def close(self) -> None:
        self.scheduler.kill()


@contextmanager
def scheduler_field(
    model: Path, folder: Path, executor: HasAddress, *scheduler: object, start_s: float = START_S
) -> Iterator[Field]:
    """A field over a `SchedulerBus`; it begins with and ends after a healthy scheduler."""
    with contextlib.closing(SchedulerBus(model, folder, executor, *scheduler)) as bus, Client(bus.address) as client:
        client.wait_ready(start_s)
        field = Field(bus)
        with field.client:
            yield field


@contextmanager
def running_executor(model: Path, log: Path, *flags: object) -> Iterator[Service]:
    """An executor alone."""
    executor = Service("executor_svc", log, "--model", str(model), "--num-threads", "1", *map(str, flags))
    try:
        yield executor
    finally:
        executor.kill()


@contextmanager
def running_field(
    model: Path, folder: Path, *, executor: Iterable[object] = (), scheduler: Iterable[object] = ()
) -> Iterator[Field]:
    """A field over a bus with these flags, and with metrics; gone afterwards."""
    flags = ("--num-threads", "1", *map(str, executor))
    with running_bus(model, folder, executor=flags, scheduler=(*WITH_METRICS, *map(str, scheduler))) as bus:
        field = Field(bus)
        with field.client:
            yield field


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all calls, made at the same time. Raises TimeoutError where one takes longer than `PATIENCE_S`."""
    pool = ThreadPoolExecutor(len(calls))
    try:
        return [future.result(PATIENCE_S) for future in [pool.submit(call) for call in calls]]
    finally:
        pool.shutdown(wait=False)  # a call that hangs ends with its bus


def is_serving(address: str) -> bool:
    """What the health service at `address` says; False where nobody answers."""
    with grpc.insecure_channel(address) as channel:
        try:
            check: Any = channel.unary_unary(HEALTH_CHECK)
            return bool(check(HEALTH_REQUEST, timeout=5) == SERVING)
        except grpc.RpcError:
            return False


def num_under_way(journal: Path) -> int:
    """Sequences of which `journal` knows no end; that is written a moment after the client has heard of it."""
    with contextlib.closing(sqlite3.connect(journal)) as database:
        (count,) = database.execute("SELECT count(*) FROM requests WHERE ended IS NULL").fetchone()
    return int(count)


def computed_when_preempted(plans: Iterable[dict[str, Any]]) -> dict[int, list[int]]:
    """Sequence -> tokens its plans had computed since it boarded, at each of its preemptions.

    A prefix hit at boarding is not counted: plan logs do not say how long it was.
    """
    computed: Counter[int] = Counter()
    lost: dict[int, list[int]] = {}
    for plan in plans:
        for sequence in plan["preempted"]:
            lost.setdefault(sequence, []).append(computed.pop(sequence))
        for sequence, num_tokens in [*plan["new"], *plan["scheduled"]]:
            computed[sequence] += num_tokens
    return lost
