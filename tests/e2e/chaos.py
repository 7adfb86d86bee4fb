"""Streams that go on while everything around them is killed, swapped and cut: `python -m tests.e2e.chaos`.

Two waves on one bus of real processes. In the first one schedulers are killed, stand by and take over, and policies are
swapped: the executor's own counter tells whether a token was computed twice. In the second one the executor is killed
too. All the time readers leave and come back. Every answer is held against the tokens that its request had alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from citybus.admin.v1 import admin_pb2, admin_pb2_grpc
from citybus.reconnect import BROKEN
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from tests.checkpoints import write_tiny
from tests.e2e.plan_log import journeys
from tests.harness import Bus, running_bus

GRACE_MS = 120_000
ANSWER_S = 300.0
POLICIES = ("priority", "shortest_first", "longest_prefix_match", "fair_share", "deadline", "fcfs")
CHANNEL_OPTIONS = [(f"grpc.{which}_reconnect_backoff_ms", 50) for which in ("initial", "min", "max")]
KILL, STANDBY, SWAP, EXECUTOR = "scheduler killed", "standby takes over", "policy swapped", "executor killed"


@dataclass(frozen=True, slots=True)
class Wave:
    """So many streams at once, and what is done to them, in an order that chance decides."""

    streams: int
    scheduler_kills: int
    policy_swaps: int
    standbys: int
    executor_kills: int

    def faults(self, chance: random.Random) -> list[str]:
        """What happens, in order."""
        faults = [KILL] * self.scheduler_kills + [SWAP] * self.policy_swaps
        faults += [STANDBY] * self.standbys + [EXECUTOR] * self.executor_kills
        chance.shuffle(faults)
        return faults


@dataclass(slots=True)
class Pause:
    """A fault, and the longest time between two tokens that a stream saw from then until the next one."""

    fault: str
    longest_s: float = 0.0


@dataclass(slots=True)
class Report:
    """What was seen. `wrong`, `lost` and `repeated` count answers, `recomputed` tokens by wave."""

    answers: int = 0
    tokens: int = 0
    left_and_came_back: int = 0
    broken_streams: int = 0
    wrong: int = 0
    lost: int = 0
    repeated: int = 0
    recomputed: list[int] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether every answer was REF, without a gap or a repeat, and only the executor's death cost anything."""
        return not (self.wrong or self.lost or self.repeated or self.recomputed[0])

    def lines(self) -> list[str]:
        """For people."""
        found = [
            f"{self.answers} answers, {self.tokens} tokens; {self.broken_streams} broken streams, "
            f"{self.left_and_came_back} readers left and came back",
            f"not REF: {self.wrong}; lost: {self.lost}; repeated: {self.repeated}",
            f"tokens computed again: {self.recomputed[0]} without a dead executor, {sum(self.recomputed[1:])} with one",
        ]
        for fault in (KILL, STANDBY, SWAP, EXECUTOR):
            pauses = [pause.longest_s for pause in self.pauses if pause.fault == fault]
            if pauses:
                found.append(
                    f"{fault}: {len(pauses)} times, longest silence of any stream "
                    f"p50 {statistics.median(pauses):.2f} s, max {max(pauses):.2f} s"
                )
        return found


class Passenger:
    """Reads one answer over any number of calls, and leaves now and then by itself."""

    def __init__(self, request: pb.GenerateRequest, chance: random.Random, report: Report) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.finish: pb.Finish | None = None
        self._chance = chance
        self._report = report
        self._heard: float | None = None

    async def ride(self, stub: Any) -> None:
        """Until the answer ends."""
        async with asyncio.timeout(ANSWER_S):
            while self.finish is None:
                leaves_after = len(self.tokens) + int(self._chance.expovariate(1 / 300))
                call = self._call(stub)
                try:
                    await self._read(call, leaves_after)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in BROKEN:
                        raise
                    self._report.broken_streams += 1
                    await asyncio.sleep(0.02)
                finally:
                    call.cancel()

    def _call(self, stub: Any) -> Any:
        if not self.tokens:  # sent again, it joins the one that runs
            return stub.Generate(self.request, wait_for_ready=True)
        attach = pb.AttachRequest(
            tenant=self.request.tenant, request_id=self.request.request_id, next_index=len(self.tokens)
        )
        return stub.Attach(attach, wait_for_ready=True)

    async def _read(self, call: Any, leaves_after: int) -> None:
        async for response in call:
            now = time.monotonic()
            self._note_silence(now)
            self._report.lost += response.first_index > len(self.tokens)
            self._report.repeated += response.first_index < len(self.tokens)
            self.tokens += response.token_ids
            if response.HasField("finish"):
                self.finish = response.finish
            elif len(self.tokens) > leaves_after:
                self._report.left_and_came_back += 1
                call.cancel()
                await asyncio.sleep(self._chance.random() / 2)
                self._heard = None  # that silence was its own
                return

    def _note_silence(self, now: float) -> None:
        """The time since the last token counts for the latest fault: the next one waits until tokens flow again."""
        if self._heard is not None and self._report.pauses:
            latest = self._report.pauses[-1]
            latest.longest_s = max(latest.longest_s, now - self._heard)
        self._heard = now


class Chaos:
    """Rides and faults on one bus; `say` is told how far it is."""

    def __init__(self, bus: Bus, journal: Path, seed: int, kinds: int, say: Callable[[str], None]) -> None:
        self.report = Report()
        self._bus = bus
        self._journal = journal
        self._accepted: set[int] = set()
        self._chance = random.Random(seed)
        self._requests = [self._request(kind) for kind in range(kinds)]
        self._references: list[list[int]] = []
        self._say = say
        self._numbers = 0
        self._arrived = 0

    def _request(self, kind: int) -> pb.GenerateRequest:
        """Prompts around the edges of blocks, some with a common beginning; greedy and drawn; of four tenants."""
        length = self._chance.choice([1, 15, 16, 17, 31, 32, 33, 70])
        prompt = [kind % 5] * (length // 2) + [self._chance.randrange(256) for _ in range(length - length // 2)]
        return pb.GenerateRequest(
            tokens=pb.TokenPrompt(ids=prompt),
            sampling=pb.SamplingParams(temperature=0.8 if kind % 2 else 0.0, seed=kind),
            stopping=pb.StopParams(max_tokens=self._chance.choice([17, 64, 150, 300]), ignore_eos=True),
            reconnect_grace_ms=GRACE_MS,
            tenant=f"tenant-{kind % 4}",
            priority=kind % 3,
        )

    async def learn(self) -> None:
        """REF of every kind: alone, and on a cold cache."""
        async with self._stub() as stub:
            for kind, request in enumerate(self._requests):
                alone = pb.GenerateRequest()
                alone.CopyFrom(request)
                alone.cache_salt = f"alone {kind}"
                passenger = Passenger(alone, random.Random(0), Report())
                passenger.request.request_id = f"alone-{kind}"
                await passenger.ride(stub)
                self._references.append(passenger.tokens)

    async def run(self, wave: Wave) -> None:
        """One wave, to its end: nobody rides any more, and nothing is left behind."""
        computed, needed = self._computed(), self._arrived
        steps = len(self._bus.plans())
        over = asyncio.Event()
        async with self._stub() as stub, asyncio.TaskGroup() as group:
            for _ in range(wave.streams):
                group.create_task(self._keep_riding(stub, over))
            for number, fault in enumerate(wave.faults(self._chance), 1):
                await self._some_tokens(wave.streams)
                self._say(f"{number}: {fault}")
                await self._do(fault)
                self._note_accepted()
            await self._some_tokens(wave.streams)
            over.set()
        await asyncio.to_thread(self._bus.wait_idle)
        self._note_accepted()
        plans = self._bus.plans()[steps:]
        if wave.executor_kills:
            self.report.recomputed.append(computed_again(plans))
        else:
            needed = self._arrived - needed + computed_for_others(plans, self._accepted)
            self.report.recomputed.append(self._computed() - computed - needed)

    async def _keep_riding(self, stub: Any, over: asyncio.Event) -> None:
        while not over.is_set():
            self._numbers += 1
            kind = self._chance.randrange(len(self._requests))
            request = pb.GenerateRequest()
            request.CopyFrom(self._requests[kind])
            request.request_id = f"ride-{self._numbers}"
            passenger = Passenger(request, self._chance, self.report)
            await passenger.ride(stub)
            self._check(passenger, kind)

    def _check(self, passenger: Passenger, kind: int) -> None:
        assert passenger.finish is not None
        usage = passenger.finish.usage
        self.report.answers += 1
        self.report.tokens += len(passenger.tokens)
        self.report.wrong += passenger.tokens != self._references[kind]
        self.report.lost += usage.completion_tokens != len(passenger.tokens)
        self._arrived += usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens - 1

    async def _some_tokens(self, streams: int) -> None:
        """Wait until the riders have got on."""
        seen, arrived = self.report.answers, self._arrived
        async with asyncio.timeout(ANSWER_S):
            while self.report.answers < seen + streams // 10 or self._arrived == arrived:
                await asyncio.sleep(0.05)

    async def _do(self, fault: str) -> None:
        doing = {KILL: self._kill, STANDBY: self._stand_by, SWAP: self._swap, EXECUTOR: self._kill_executor}
        await doing[fault]()

    def _begin(self, fault: str) -> None:
        self.report.pauses.append(Pause(fault))

    async def _kill(self) -> None:
        self._begin(KILL)
        self._bus.scheduler.kill()
        await asyncio.to_thread(self._bus.scheduler.restart)

    async def _stand_by(self) -> None:
        successor = await asyncio.to_thread(self._bus.scheduler.stand_by)
        self._begin(STANDBY)
        await asyncio.to_thread(self._bus.scheduler.succeed, successor)

    async def _kill_executor(self) -> None:
        self._begin(EXECUTOR)
        self._bus.executor.kill()
        await asyncio.to_thread(self._bus.executor.restart)

    async def _swap(self) -> None:
        async with grpc.aio.insecure_channel(self._bus.scheduler.facts["admin_listen"]) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            policy = self._chance.choice(POLICIES)
            self._begin(SWAP)
            await stub.SetPolicy(admin_pb2.SetPolicyRequest(name=policy), timeout=30, wait_for_ready=True)

    def _note_accepted(self) -> None:
        """Remember the sequences that the journal knows, before it forgets those that ended long ago."""
        with contextlib.closing(sqlite3.connect(f"file:{self._journal}?mode=ro", uri=True)) as journal:
            self._accepted |= {number for (number,) in journal.execute("SELECT sequence_id FROM requests")}

    def _computed(self) -> int:
        return round(self._bus.executor.metric("executor_step_tokens_sum"))

    @asynccontextmanager
    async def _stub(self) -> AsyncIterator[Any]:
        async with grpc.aio.insecure_channel(self._bus.address, options=CHANNEL_OPTIONS) as channel:
            yield generation_pb2_grpc.GenerationServiceStub(channel)


def computed_again(plans: Sequence[dict[str, Any]]) -> int:
    """Tokens of sequences that had been computed already when they boarded once more, prefix hits included."""
    again = 0
    for journey in journeys(plans).values():
        for boarded in journey.boarded[1:]:
            again += sum(count for step, count in journey.rows.items() if step < boarded)
    return again


def computed_for_others(plans: Sequence[dict[str, Any]], accepted: Container[int]) -> int:
    """Tokens of sequences that are not `accepted`: a request's first steps run while its acceptance is written, and
    nobody knows it any more where the scheduler is killed then. A plan that was never executed has a successor with its
    number.
    """
    executed = {plan["step"]: plan for plan in plans}.values()
    rows = [row for plan in executed for row in (*plan["new"], *plan["scheduled"])]
    return sum(num_tokens for sequence_id, num_tokens in rows if sequence_id not in accepted)


async def run(folder: Path, waves: Sequence[Wave], *, seed: int, kinds: int, say: Callable[[str], None]) -> Report:
    """All of it, on a bus of its own in `folder`."""
    model = write_tiny(folder / "tiny", max_model_len=512)
    executor = ("--max-sequences", "64", "--num-blocks", "4096", "--metrics-listen", "127.0.0.1:0")
    journal = folder / "journal.db"
    scheduler = ("--journal", str(journal), "--executor-timeout", "120")
    with running_bus(model, folder, executor=executor, scheduler=scheduler) as bus:
        chaos = Chaos(bus, journal, seed, kinds, say)
        await chaos.learn()
        for wave in waves:
            await chaos.run(wave)
        return chaos.report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200, help="streams at once (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is left to chance (default %(default)s)")
    args = parser.parse_args()
    waves = (Wave(args.streams, 15, 4, 2, 0), Wave(args.streams, 5, 1, 0, 1))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        report = asyncio.run(run(Path(folder), waves, seed=args.seed, kinds=24, say=print))
    print("\n".join(report.lines()))
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
