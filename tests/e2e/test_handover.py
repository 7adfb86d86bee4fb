"""The scheduler is changed while streams run, by every way there is: no token is lost, repeated or computed again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import Field, SchedulerBus, running_executor, scheduler_field
from tests.harness import START_S, Service, wait_until

LENGTH = 400
GRACE_MS = 30_000
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

    def read(self) -> Reader:
        """Until it ends: `Generate` once, then `Attach` as often as the stream breaks."""
        deadline = time.monotonic() + 60
        while self.finish is None:
            assert time.monotonic() < deadline
            try:
                with grpc.insecure_channel(self.address) as channel:
                    self._follow(generation_pb2_grpc.GenerationServiceStub(channel))
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                self.breaks += 1
                time.sleep(0.05)
        return self

    def _follow(self, stub: Any) -> None:
        if self.tokens:
            attach = pb.AttachRequest(request_id=self.request.request_id, next_index=len(self.tokens))
            call = stub.Attach(attach, wait_for_ready=True, timeout=30)
        else:
            call = stub.Generate(self.request, wait_for_ready=True, timeout=30)
        for response in call:
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
            seen = sum(len(reader.tokens) for reader in readers) + 60
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
    """Sequence -> how often it was sent whole, less its preemptions."""
    counts: dict[int, int] = {}
    for plan in bus.plans():
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
