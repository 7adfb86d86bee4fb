"""The scheduler is changed while streams run, by every way there is: no token is lost, repeated or computed again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citybus import AsyncClient, Client, Completion
from citybus.admin.v1 import admin_pb2, admin_pb2_grpc
from citybus.processes import child_command
from citybus.reconnect import BROKEN
from citybus.requests import RequestOptions
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import (
    WITH_METRICS,
    Field,
    InProcess,
    SchedulerBus,
    num_under_way,
    running_executor,
    scheduler_field,
)
from tests.e2e.field_cases.link import Link
from tests.harness import ROOT, START_S, Bus, Service, wait_until

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
LENGTH = 450
GRACE_MS = 30_000
AT_ONCE = [(f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "min", "max")]
"""Readers come back before the answers are over: these are computed whether somebody reads them or not."""
PROMPTS = [[seat, *range(40, 40 + 5 * seat)] for seat in range(8)]


@dataclass
class Reader:
    """Reads one answer over any number of streams, with bare gRPC."""

    address: str
    request: pb.GenerateRequest
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: pb.Finish | None = None
    breaks: int = 0
    longest_pause_s: float = 0.0
    _last: float | None = None

    def read(self) -> Reader:
        """Until it ends: `Generate` once, then `Attach` as often as the stream breaks."""
        deadline = time.monotonic() + 150
        while self.finish is None:
            assert time.monotonic() < deadline
            try:
                with grpc.insecure_channel(self.address, options=AT_ONCE) as channel:
                    self._follow(generation_pb2_grpc.GenerationServiceStub(channel))
            except grpc.RpcError as error:
                assert error.code() in BROKEN, error
                self.breaks += 1
                time.sleep(0.05)
        return self

    def _follow(self, stub: Any) -> None:
        if self.tokens:
            attach = pb.AttachRequest(request_id=self.request.request_id, next_index=len(self.tokens))
            call = stub.Attach(attach, wait_for_ready=True, timeout=120)
        else:
            call = stub.Generate(self.request, wait_for_ready=True, timeout=120)
        for response in call:
            now = time.monotonic()
            if self._last and self.tokens:
                self.longest_pause_s = max(self.longest_pause_s, now - self._last)
            self._last = now
            assert response.first_index == len(self.tokens), "a gap or a repeat"
            self.tokens += response.token_ids
            self.text += response.text
            if response.HasField("finish"):
                self.finish = response.finish


def request_of(number: int, length: int = LENGTH, **options: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=f"rider-{number}",
        tokens=pb.TokenPrompt(ids=PROMPTS[number]),
        sampling=pb.SamplingParams(temperature=0.8 if number % 2 else 0.0, seed=number),
        stopping=pb.StopParams(max_tokens=length, ignore_eos=True),
        reconnect_grace_ms=GRACE_MS,
        **options,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny", max_model_len=512)


EXECUTOR = ("--num-blocks", 256, "--max-sequences", 6, "--max-step-tokens", 48, *WITH_METRICS)
"""Six seats for eight riders, and blocks for all of them."""


@pytest.fixture
def executor(model: Path, tmp_path: Path) -> Iterator[Service]:
    with running_executor(model, tmp_path / "executor.log", *EXECUTOR) as service:
        yield service


@pytest.fixture
def flags(tmp_path: Path) -> tuple[object, ...]:
    return ("--journal", tmp_path / "journal.db", "--drain-grace", 0, "--executor-timeout", 60)


@pytest.fixture
def field_(model: Path, tmp_path: Path, executor: Service, flags: tuple[object, ...]) -> Iterator[Field]:
    with scheduler_field(model, tmp_path / "bus", executor, *flags) as started:
        yield started


@pytest.fixture(scope="module")
def references(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[tuple[int, ...], str]]:
    """REF and its text, of every rider, alone and on a cold cache."""
    folder = tmp_path_factory.mktemp("alone")
    found = []
    with (
        running_executor(model, folder / "executor.log", *EXECUTOR) as executor,
        scheduler_field(model, folder, executor) as field,
    ):
        for number in range(len(PROMPTS)):
            reader = Reader(field.bus.address, request_of(number, cache_salt=f"alone {number}")).read()
            found.append((tuple(reader.tokens), reader.text))
    return found


def kill(bus: SchedulerBus) -> None:
    bus.scheduler.kill()
    bus.scheduler.restart()


def terminate(bus: SchedulerBus) -> None:
    assert bus.scheduler.terminate() == 0
    bus.scheduler.restart()


def hand_over(bus: SchedulerBus) -> None:
    bus.scheduler.send(signal.SIGUSR1)
    assert bus.scheduler.process.wait(START_S) == 0
    bus.scheduler.restart()


WAYS: dict[str, Callable[[SchedulerBus], None]] = {"kill": kill, "SIGTERM": terminate, "SIGUSR1": hand_over}


def ride_through(field: Field, change: Callable[[], None], times: int = 1, **options: Any) -> list[Reader]:
    """All riders at once, with `change` in the middle."""
    readers = [Reader(field.bus.address, request_of(number, **options)) for number in range(len(PROMPTS))]
    with ThreadPoolExecutor(len(readers)) as pool:
        futures = [pool.submit(reader.read) for reader in readers]
        for _ in range(times):
            seen = sum(len(reader.tokens) for reader in readers) + 20
            wait_until(lambda least=seen: sum(len(reader.tokens) for reader in readers) > least, "tokens flow", 30)
            change()
        return [future.result() for future in futures]


def check(field: Field, readers: list[Reader], references: list[tuple[tuple[int, ...], str]]) -> None:
    for reader, (tokens, text) in zip(readers, references, strict=True):
        assert tuple(reader.tokens) == tokens
        assert reader.text == text
    assert all(reader.finish.usage.completion_tokens == LENGTH for reader in readers if reader.finish)
    field.client.wait_ready(START_S)
    field.check()


def boardings(bus: SchedulerBus) -> dict[int, int]:
    """Sequence -> how often it was sent whole, less its preemptions; a plan that was never executed has a successor
    with its number.
    """
    counts: dict[int, int] = {}
    for plan in {plan["step"]: plan for plan in bus.plans()}.values():
        for sequence_id in plan["preempted"]:
            counts[sequence_id] -= 1
        for sequence_id, _ in plan["new"]:
            counts[sequence_id] = counts.get(sequence_id, 0) + 1
    return counts


@pytest.mark.parametrize("way", WAYS)
def test_scheduler_is_changed_while_streams_run(
    field_: Field, references: list[tuple[tuple[int, ...], str]], way: str
) -> None:
    bus = field_.bus
    readers = ride_through(field_, lambda: WAYS[way](bus), times=2)
    assert min(reader.breaks for reader in readers) >= 1
    check(field_, readers, references)
    assert set(boardings(bus).values()) <= {0, 1}, "somebody was computed again"
    connected = bus.scheduler.events("executor connected")
    assert [entry["resident"] > 0 for entry in connected] == [False, True, True]
    assert len(bus.executor.events("serving")) == 1


def test_standby_takes_over_within_a_second(field_: Field, references: list[tuple[tuple[int, ...], str]]) -> None:
    scheduler = field_.bus.scheduler
    successor = scheduler.stand_by()
    readers = ride_through(field_, lambda: scheduler.succeed(successor))
    check(field_, readers, references)
    assert max(reader.longest_pause_s for reader in readers) < 3, "the promise is 1 s; the rest is for a busy machine"


def test_executor_is_cut_off_and_comes_back(model: Path, executor: Service, tmp_path: Path) -> None:
    with (
        Link(executor.address) as link,
        scheduler_field(model, tmp_path / "bus", InProcess(link.address), "--executor-timeout", 60) as field,
        contextlib.ExitStack() as stack,
    ):
        expected = [field.ask(prompt, LENGTH, cache_salt=uuid.uuid4().hex).token_ids for prompt in PROMPTS[:6]]
        executor.send(signal.SIGSTOP)  # so that all board together
        rides = [field.start(prompt, LENGTH) for prompt in PROMPTS[:6]]
        executor.send(signal.SIGCONT)
        rides[5].read_some(5)
        health = stack.enter_context(contextlib.closing(HealthWatch(field.bus.address)))
        executor.send(signal.SIGSTOP)  # so that nobody ends before the cut
        link.cut()
        wait_until(lambda: bool(field.bus.scheduler.events("executor lost")), "it is noticed", 30)
        executor.send(signal.SIGCONT)
        link.mend()
        assert [ride.read().token_ids for ride in rides] == expected
        assert set(boardings(field.bus).values()) <= {0, 1}, "somebody was computed again"
        assert field.bus.scheduler.events("executor connected")[-1]["resident"] == 6
        assert health.seen == [SERVING, NOT_SERVING, SERVING]


class HealthWatch:
    """What the health service says of the generation service, change by change, until it is gone."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        request = health_pb2.HealthCheckRequest(service="citybus.v1.GenerationService")
        self._call = health_pb2_grpc.HealthStub(self._channel).Watch(request)
        self.seen = [next(self._call).status]
        self._thread = threading.Thread(target=self._collect)
        self._thread.start()

    def _collect(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for response in self._call:
                self.seen.append(response.status)

    def close(self) -> None:
        self._call.cancel()
        self._thread.join()
        self._channel.close()


@pytest.mark.parametrize("way", WAYS)
def test_between_two_schedulers_new_requests_are_told_when_to_come_back(
    field_: Field, executor: Service, way: str
) -> None:
    """The executor stands still, so that the second one has no term yet; then both the old and the new request end."""
    bus = field_.bus
    reader = Reader(bus.address, request_of(0))
    with ThreadPoolExecutor(1) as pool, contextlib.closing(HealthWatch(bus.address)) as health:
        reading = pool.submit(reader.read)
        wait_until(lambda: len(reader.tokens) > 3, "tokens flow", 30)
        executor.send(signal.SIGSTOP)
        try:
            WAYS[way](bus)  # type: ignore[arg-type]
            wait_until(lambda: reader.breaks > 0, "the stream has broken", 30)
            for request in (request_of(1), pb.AttachRequest(request_id="rider-0")):
                stub = stub_of(bus.address)
                ask = stub.Generate if isinstance(request, pb.GenerateRequest) else stub.Attach
                with pytest.raises(grpc.RpcError) as refused:
                    list(ask(request, timeout=30))
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
                assert dict(refused.value.trailing_metadata())["grpc-retry-pushback-ms"] == "1000"
            with contextlib.closing(HealthWatch(bus.address)) as successor:
                assert successor.seen == [NOT_SERVING]
                executor.send(signal.SIGCONT)
                reading.result(60)
                wait_until(lambda: successor.seen == [NOT_SERVING, SERVING], "the successor serves", 30)
        finally:
            executor.send(signal.SIGCONT)
        assert health.seen == ([SERVING] if way == "kill" else [SERVING, NOT_SERVING])
    assert len(reader.tokens) == LENGTH
    assert len(Reader(bus.address, request_of(1)).read().tokens) == LENGTH
    field_.check()


def test_both_are_killed(field_: Field, executor: Service, references: list[tuple[tuple[int, ...], str]]) -> None:
    def kill_both() -> None:
        executor.kill()
        field_.bus.scheduler.kill()
        executor.restart()
        field_.bus.scheduler.restart()

    check(field_, ride_through(field_, kill_both), references)


def test_executor_says_itself_that_nothing_is_computed_again(field_: Field, executor: Service, tmp_path: Path) -> None:
    """By its own counters, and those of the scheduler that took over; each run is on a cold cache."""

    def computed(kind: str) -> float:
        return executor.metric("executor_computed_tokens_total", kind=kind)

    def all_ride() -> bool:
        return num_under_way(tmp_path / "journal.db") == len(PROMPTS) and len(field_.bus.resident()) == 6

    def kill_in_the_middle() -> None:
        wait_until(all_ride, "six sit and two wait", 30)
        kill(field_.bus)  # type: ignore[arg-type]

    answers = []
    for salt, change in (("undisturbed", lambda: None), ("killed", kill_in_the_middle)):
        before = computed("prefill"), computed("decode")
        answers.append([reader.tokens for reader in ride_through(field_, change, cache_salt=salt)])
        assert computed("prefill") - before[0] == sum(len(prompt) - 1 for prompt in PROMPTS)
        assert computed("decode") - before[1] == len(PROMPTS) * LENGTH
    assert answers[0] == answers[1]
    assert executor.metric("executor_sessions_opened_total") == 2
    assert executor.metric("executor_pool_clears_total") == 0

    with admin_of(field_.bus) as admin:
        watching = admin.WatchEvents(admin_pb2.WatchEventsRequest(), timeout=10)
        hand_over = next(watching).hand_over
        watching.cancel()
    assert hand_over == admin_pb2.HandOver(
        term=2, adopted_sequences=6, queued_sequences=2, cached_blocks=hand_over.cached_blocks
    )
    assert hand_over.cached_blocks > 0, "of the run before"
    assert field_.metric("handovers_total") == 1
    assert field_.metric("handover_adopted_sequences") == 6
    assert field_.metric("handover_recomputed_tokens") == 0


def test_prefix_hits_survive(field_: Field, executor: Service, tmp_path: Path) -> None:
    prompt = [9, *range(100)]
    field_.ask(prompt, 5)
    wait_until(lambda: num_under_way(tmp_path / "journal.db") == 0, "the journal knows that it has ended", 10)
    kill(field_.bus)  # type: ignore[arg-type]
    field_.client.wait_ready(START_S)
    events = subprocess.Popen(
        child_command(["citybus", "events", "--admin-address", field_.bus.scheduler.facts["admin_listen"]]),
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert events.stdout is not None
    with events, events.stdout:
        line = json.loads(events.stdout.readline())
        events.terminate()
    assert (line["event"], line["term"], line["adopted_sequences"]) == ("hand_over", 2, 0)
    assert line["cached_blocks"] >= 6
    before = executor.metric("executor_computed_tokens_total", kind="prefill")
    usage = field_.ask(prompt, 5).finish.usage
    assert usage.cached_tokens >= 96, "whole blocks are found by name, also where nobody holds them"
    computed = executor.metric("executor_computed_tokens_total", kind="prefill") - before
    assert computed == len(prompt) - 1 - usage.cached_tokens
    field_.check()


def served(journal: Path, tenant: str) -> float:
    """What the policy has charged a tenant with, as the journal knows."""
    with contextlib.closing(sqlite3.connect(journal)) as database:
        row = database.execute("SELECT record FROM policy").fetchone()
    return float(json.loads(row[0])["state"].get("served", {}).get(tenant, 0.0)) if row else 0.0


def test_policy_that_was_set_goes_on_with_its_state(field_: Field, tmp_path: Path) -> None:
    bus = field_.bus
    with admin_of(bus) as admin:
        admin.SetPolicy(admin_pb2.SetPolicyRequest(name="fair_share", parameters={"weights": "gold=0.125"}))
        before = admin.GetPolicy(admin_pb2.GetPolicyRequest())
    for turn, way in enumerate(WAYS, start=1):
        expected = turn * 80  # by weight: 4 tokens of a prompt, and 3 more at 2 each
        field_.ask([*range(5 * turn, 5 * turn + 5)], 3, tenant="gold")
        if way == "kill":  # it has no time for last words
            wait_until(
                lambda most=expected: served(tmp_path / "journal.db", "gold") == most, "the state is written", 10
            )
        WAYS[way](bus)  # type: ignore[arg-type]
        field_.client.wait_ready(START_S)
        with admin_of(bus) as admin:
            assert admin.GetPolicy(admin_pb2.GetPolicyRequest()) == before
        assert served(tmp_path / "journal.db", "gold") == expected
    bus.scheduler.terminate()
    bus.scheduler.flags += ("--policy", "priority")
    bus.scheduler.restart()
    assert bus.status().policy == "priority"


def test_clients_of_the_library_do_not_notice(field_: Field, references: list[tuple[tuple[int, ...], str]]) -> None:
    """Synchronous and asynchronous ones, through two kills, with nothing but their usual loop."""
    bus = field_.bus

    def options(number: int) -> RequestOptions:
        request = request_of(number)
        return {
            "token_ids": PROMPTS[number],
            "temperature": request.sampling.temperature,
            "seed": number,
            "max_tokens": LENGTH,
            "ignore_eos": True,
        }

    async def ask(number: int) -> Completion:
        async with AsyncClient(bus.address) as client:
            return await client.complete(**options(number))

    with ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(field_.client.complete, **options(number)) for number in range(4)]
        futures += [pool.submit(asyncio.run, ask(number)) for number in range(4, 8)]
        for _ in range(2):
            time.sleep(0.5)
            kill(bus)  # type: ignore[arg-type]
        answers = [future.result(60) for future in futures]
    assert [(answer.token_ids, answer.text) for answer in answers] == references


def test_older_scheduler_is_fenced(model: Path, executor: Service, tmp_path: Path) -> None:
    """Two journals, so that neither waits for the other: the younger one drives, the older one ends with 3."""
    flags = [("--journal", tmp_path / f"{name}.db") for name in ("old", "new")]
    with scheduler_field(model, tmp_path / "old", executor, *flags[0]) as old:
        ride = old.start(PROMPTS[0], LENGTH)
        ride.read_some(3)
        executor.send(signal.SIGSTOP)  # so that the ride does not end before the second one has come
        with contextlib.closing(SchedulerBus(model, tmp_path / "new", executor, *flags[1])) as bus:
            executor.send(signal.SIGCONT)
            assert old.bus.scheduler.process.wait(START_S) == 3
            with Client(bus.address) as client:
                client.wait_ready(START_S)
            Field(bus).check()
            assert bus.scheduler.events("executor connected")[0]["resident"] == 1


@contextlib.contextmanager
def admin_of(bus: Bus) -> Iterator[Any]:
    with grpc.insecure_channel(bus.scheduler.facts["admin_listen"]) as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


def stub_of(address: str) -> Any:
    return generation_pb2_grpc.GenerationServiceStub(grpc.insecure_channel(address))


def read_some(call: Any, count: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < count:
        tokens += next(call).token_ids
    return tokens


def test_attach_while_it_runs_and_after_it_ended(field_: Field, references: list[tuple[tuple[int, ...], str]]) -> None:
    stub, (expected, text) = stub_of(field_.bus.address), references[1]
    first = stub.Generate(request_of(1))
    read_some(first, 10)
    second = stub.Attach(pb.AttachRequest(request_id="rider-1", next_index=0))
    assert [token for part in second for token in part.token_ids] == list(expected)
    with pytest.raises(grpc.RpcError) as replaced:
        list(first)
    assert replaced.value.code() is grpc.StatusCode.ABORTED
    for start in (0, 1, LENGTH - 1, LENGTH):
        parts = list(stub.Attach(pb.AttachRequest(request_id="rider-1", next_index=start)))
        assert [token for part in parts for token in part.token_ids] == list(expected)[start:]
        assert text.endswith("".join(part.text for part in parts))
        assert parts[-1].finish.usage.completion_tokens == LENGTH
    for unknown in (pb.AttachRequest(request_id="nobody"), pb.AttachRequest(request_id="rider-1", tenant="other")):
        with pytest.raises(grpc.RpcError) as missing:
            list(stub.Attach(unknown))
        assert missing.value.code() is grpc.StatusCode.NOT_FOUND
    field_.check()


def test_same_request_again_joins_the_one_that_nobody_reads(
    field_: Field, references: list[tuple[tuple[int, ...], str]]
) -> None:
    stub, (expected, _) = stub_of(field_.bus.address), references[1]
    first = stub.Generate(request_of(1))
    read_some(first, 10)
    with pytest.raises(grpc.RpcError) as refused:
        list(stub.Generate(request_of(1)))
    assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS, "somebody reads it"
    first.cancel()
    accepted = field_.bus.status().totals.accepted
    second = Reader(field_.bus.address, request_of(1)).read()
    assert second.tokens == list(expected)
    assert field_.bus.status().totals.accepted == accepted
    field_.check()


def test_grace_ends_and_cancel_ends_at_once(field_: Field) -> None:
    stub = stub_of(field_.bus.address)
    for number, leave in ((1, lambda: None), (2, lambda: stub.Cancel(pb.CancelRequest(request_id="rider-2")))):
        request = request_of(number)
        request.reconnect_grace_ms = 300 if number == 1 else GRACE_MS
        call = stub.Generate(request)
        read_some(call, 3)
        call.cancel()
        leave()
        field_.bus.wait_idle()
    assert field_.metric("request_success_total", finished_reason="cancelled") == 2
    field_.check()


def test_torn_journal_is_refused_in_one_line(model: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    journal.write_bytes(b"SQLite format 3\0" + bytes(5000))
    done = subprocess.run(
        child_command(["scheduler_svc", "--model", str(model), "--journal", str(journal)]),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("{"))
    assert line.startswith(f"scheduler: the journal {journal} ")
    assert line.endswith("move the file away (its requests are then lost), or start with --journal none")
