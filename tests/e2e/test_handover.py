"""The scheduler is changed while streams run, by every way there is: no token is lost, repeated or computed again."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from citybus import AsyncClient, Completion
from citybus.messages import RequestOptions
from citybus.processes import child_command
from citybus.reconnect import BROKEN
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import Field, InProcess, SchedulerBus, running_executor, scheduler_field
from tests.e2e.field_cases.link import Link
from tests.harness import ROOT, START_S, Service, wait_until

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


@pytest.fixture
def executor(model: Path, tmp_path: Path) -> Iterator[Service]:
    """Six seats for eight riders, and blocks for all of them."""
    flags = ("--num-blocks", 256, "--max-sequences", 6, "--max-step-tokens", 48)
    with running_executor(model, tmp_path / "executor.log", *flags) as service:
        yield service


@pytest.fixture
def flags(tmp_path: Path) -> tuple[object, ...]:
    return ("--journal", tmp_path / "journal.db", "--drain-grace", 0, "--executor-timeout", 60)


@pytest.fixture
def field_(model: Path, tmp_path: Path, executor: Service, flags: tuple[object, ...]) -> Iterator[Field]:
    with scheduler_field(model, tmp_path / "bus", executor, *flags) as started:
        yield started


@pytest.fixture
def references(field_: Field) -> list[tuple[tuple[int, ...], str]]:
    """REF and its text, of every rider, alone and on a cold cache."""
    found = []
    for number in range(len(PROMPTS)):
        request = request_of(number, cache_salt=f"alone {number}")
        request.request_id = f"alone-{number}"
        reader = Reader(field_.bus.address, request).read()
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


def ride_through(field: Field, change: Callable[[], None], times: int = 1) -> list[Reader]:
    """All riders at once, with `change` in the middle."""
    readers = [Reader(field.bus.address, request_of(number)) for number in range(len(PROMPTS))]
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


def test_standby_takes_over_within_a_second(
    field_: Field,
    references: list[tuple[tuple[int, ...], str]],
    model: Path,
    tmp_path: Path,
    flags: tuple[object, ...],
) -> None:
    bus = field_.bus
    ports = ("--listen", bus.scheduler.address, "--admin-listen", bus.scheduler.facts["admin_listen"])
    log = tmp_path / "standby.log"
    command = ["scheduler_svc", "--model", str(model), "--executor", bus.executor.address, *map(str, flags), *ports]
    with log.open("wb") as stderr:
        standby = subprocess.Popen(child_command(command), cwd=ROOT, stderr=stderr)
    try:
        wait_until(lambda: "standby" in log.read_text(), "the second one stands by", START_S)
        readers = ride_through(field_, bus.scheduler.kill)
        check(field_, readers, references)
        assert max(reader.longest_pause_s for reader in readers) < 3, (
            "the promise is 1 s; the rest is for a busy machine"
        )
        assert standby.poll() is None
    finally:
        standby.kill()
        standby.wait(START_S)


def test_executor_is_cut_off_and_comes_back(model: Path, executor: Service, tmp_path: Path) -> None:
    with (
        Link(executor.address) as link,
        scheduler_field(model, tmp_path / "bus", InProcess(link.address), "--executor-timeout", 60) as field,
    ):
        expected = [field.ask(prompt, LENGTH, cache_salt=uuid.uuid4().hex).token_ids for prompt in PROMPTS[:6]]
        executor.send(signal.SIGSTOP)  # so that all board together
        rides = [field.start(prompt, LENGTH) for prompt in PROMPTS[:6]]
        executor.send(signal.SIGCONT)
        rides[5].read_some(5)
        executor.send(signal.SIGSTOP)  # so that nobody ends before the cut
        link.cut()
        wait_until(lambda: bool(field.bus.scheduler.events("executor lost")), "it is noticed", 30)
        executor.send(signal.SIGCONT)
        link.mend()
        assert [ride.read().token_ids for ride in rides] == expected
        assert set(boardings(field.bus).values()) <= {0, 1}, "somebody was computed again"
        assert field.bus.scheduler.events("executor connected")[-1]["resident"] == 6


def test_both_are_killed(field_: Field, executor: Service, references: list[tuple[tuple[int, ...], str]]) -> None:
    def kill_both() -> None:
        executor.kill()
        field_.bus.scheduler.kill()
        executor.restart()
        field_.bus.scheduler.restart()

    check(field_, ride_through(field_, kill_both), references)


def test_prefix_hits_survive(field_: Field) -> None:
    prompt = [9, *range(100)]
    field_.ask(prompt, 5)
    kill(field_.bus)  # type: ignore[arg-type]
    field_.client.wait_ready(START_S)
    usage = field_.ask(prompt, 5).finish.usage
    assert usage.cached_tokens >= 96, "whole blocks are found by name, also where nobody holds them"
    field_.check()


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
        with scheduler_field(model, tmp_path / "new", executor, *flags[1]) as new:
            assert old.bus.scheduler.process.wait(START_S) == 3
            new.check()
            assert new.bus.scheduler.events("executor connected")[0]["resident"] == 1


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
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"scheduler: the journal {journal} ")
    assert line.endswith("move the file away (its requests are then lost), or start with --journal none")
