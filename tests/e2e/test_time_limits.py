"""A request's time limit ends it with DEADLINE wherever it is, and harms nobody."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from citybus import Client, Finish, FinishReason
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from tests.harness import Bus, canary, running_bus

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
MARGIN_MS = 10_000
"""A busy machine's."""


@pytest.fixture(scope="module")
def one_seat(counting: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    flags = ("--num-blocks", "2048", "--max-sequences", "1")
    with running_bus(counting, tmp_path_factory.mktemp("one-seat"), executor=flags) as bus:
        yield bus


def check(finish: Finish, limit_ms: int) -> None:
    assert finish.reason is FinishReason.DEADLINE
    assert limit_ms <= finish.timings.total_ms < limit_ms + MARGIN_MS


def test_a_running_request_ends_with_what_it_has(one_seat: Bus) -> None:
    with Client(one_seat.address) as client:
        expected = canary(client).token_ids
        answer = client.complete(token_ids=[7], time_limit_ms=1500, **GREEDY)
        check(answer.finish, 1500)
        tokens = answer.token_ids
        assert 0 < len(tokens) < 8000
        assert tokens == tuple((8 + place) % 256 for place in range(len(tokens)))
        assert answer.finish.usage.completion_tokens == len(tokens)
        canary(client, expected)
    one_seat.wait_idle()


def test_a_queued_request_ends_without_having_boarded(one_seat: Bus) -> None:
    with Client(one_seat.address) as client, ExitStack() as stack:
        sitting = stack.enter_context(client.generate(token_ids=[0], **GREEDY))
        next(sitting)
        answer = client.complete(token_ids=[7], time_limit_ms=200, **GREEDY)
        check(answer.finish, 200)
        assert answer.token_ids == ()
        assert answer.finish.usage.completion_tokens == 0
        assert answer.finish.timings.first_token_ms == 0
        assert answer.finish.timings.queued_ms == answer.finish.timings.total_ms
        assert one_seat.status().running == 1, "who sits is not disturbed"
        assert len(one_seat.resident()) == 1
        assert next(sitting).token_ids
    one_seat.wait_idle()


def test_a_request_ends_in_the_middle_of_its_prefill(one_seat: Bus) -> None:
    with Client(one_seat.address) as client:
        expected = canary(client).token_ids
        one_seat.executor.send(signal.SIGSTOP)  # the plans with its first chunks are on their way, and stay so
        try:
            answer = client.complete(token_ids=list(range(256)) * 16, time_limit_ms=500, **GREEDY)
        finally:
            one_seat.executor.send(signal.SIGCONT)
        check(answer.finish, 500)
        assert answer.token_ids == ()
        assert answer.finish.timings.queued_ms < answer.finish.timings.total_ms, "it had boarded"
        canary(client, expected)
    one_seat.wait_idle()


def test_a_request_that_nobody_reads_ends_too(one_seat: Bus) -> None:
    with grpc.insecure_channel(one_seat.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        prompt, sampling = pb.TokenPrompt(ids=[7]), pb.SamplingParams(temperature=0)
        request = pb.GenerateRequest(tokens=prompt, sampling=sampling, request_id="left", time_limit_ms=1000)
        request.reconnect_grace_ms = 60_000
        call = stub.Generate(request)
        next(call)
        call.cancel()
        (*_, last) = stub.Attach(pb.AttachRequest(request_id="left"), timeout=30)
        assert last.finish.reason == pb.FINISH_REASON_DEADLINE
        assert 1000 <= last.finish.timings.total_ms < 1000 + MARGIN_MS
        one_seat.wait_idle()


def test_a_request_ends_while_the_executor_is_away(one_seat: Bus) -> None:
    with Client(one_seat.address) as client, ExitStack() as stack:
        sitting = stack.enter_context(client.generate(token_ids=[0], time_limit_ms=2000, **GREEDY))
        next(sitting)
        waiting = stack.enter_context(client.generate(token_ids=[7], time_limit_ms=1500, **GREEDY))
        assert waiting.request_id()
        one_seat.executor.kill()
        assert list(waiting) == []
        check(waiting.finish, 1500)
        tokens = [token for delta in sitting for token in delta.token_ids]
        assert tokens == [(2 + place) % 256 for place in range(len(tokens))]
        check(sitting.finish, 2000)
        one_seat.executor.restart()
        client.wait_ready()
        canary(client)
    one_seat.wait_idle()
