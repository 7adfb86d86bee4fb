"""Clients that do not read what they asked for: their answers wait, in little memory, and nobody waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from citybus import Client
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from tests.harness import Bus, running_bus, wait_until

SLOW = 4
LENGTH = 2000
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]


@pytest.fixture(scope="module")
def bus(counting: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with running_bus(counting, tmp_path_factory.mktemp("slow"), executor=("--num-blocks", "2048")) as started:
        yield started


def ask(stub: generation_pb2_grpc.GenerationServiceStub, start: int) -> grpc._CallIterator[pb.GenerateResponse]:
    """An answer of which nothing is read before the caller does."""
    return stub.Generate(
        pb.GenerateRequest(
            tokens=pb.TokenPrompt(ids=[start]),
            sampling=pb.SamplingParams(temperature=0.0),
            stopping=pb.StopParams(max_tokens=LENGTH, ignore_eos=True),
        )
    )


def test_answers_wait_for_slow_readers_and_nobody_else_does(bus: Bus) -> None:
    with grpc.insecure_channel(bus.address, options=SMALL_WINDOW) as channel, Client(bus.address) as client:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        slow = [ask(stub, start) for start in range(SLOW)]
        wait_until(lambda: bus.status().running == SLOW, "the slow ones run", 10)

        def answer(start: int) -> tuple[int, ...]:
            return client.complete(token_ids=[start], temperature=0.0, max_tokens=100, ignore_eos=True).token_ids

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(answer, range(100, 108)))
        assert answers == [tuple((start + 1 + place) % 256 for place in range(100)) for start in range(100, 108)]
        wait_until(lambda: bus.status().running == 0, "the slow answers are generated", 120)
        bus.wait_idle()
        for start, call in enumerate(slow):
            messages = list(call)
            tokens = [token for message in messages for token in message.token_ids]
            assert tokens == [(start + 1 + place) % 256 for place in range(LENGTH)]
            assert len(messages) < LENGTH // 4, "what waits is one message, not a queue of them"
            assert max(len(message.token_ids) for message in messages) > LENGTH // 2


def test_a_slow_reader_that_leaves_is_forgotten(bus: Bus) -> None:
    with grpc.insecure_channel(bus.address, options=SMALL_WINDOW) as channel:
        before = bus.status().totals.generated_tokens
        call = ask(generation_pb2_grpc.GenerationServiceStub(channel), 5)
        wait_until(lambda: bus.status().totals.generated_tokens > before + LENGTH // 4, "the window is full", 60)
        assert bus.status().running == 1
        call.cancel()
        bus.wait_idle()
