"""Samples of one prompt through the processes: each is what a request alone with its seed gets, whatever happens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from citybus import Client, Completion, Exhausted, FinishReason, InvalidRequest
from citybus.reconnect import DEFAULT_RECONNECT
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from scheduler_svc.sample_seeds import sample_seed
from tests.e2e.field_cases.field import Field, running_field
from tests.e2e.plan_log import rows
from tests.harness import Bus, running_bus, wait_until

SEED = 7
EDGES = (1, 15, 16, 17, 31, 32, 33)
LENGTH = 24
ROOMY = ("--num-blocks", 128)
TIGHT = ("--num-blocks", 12, "--max-step-tokens", 16, "--max-sequences", 5)
"""Twelve blocks for four samples of up to four or five each: they preempt each other."""


def options(length: int, **changes: Any) -> dict[str, Any]:
    prompt = [(7 * position + length) % 250 for position in range(length)]
    return {"token_ids": prompt, "temperature": 1.2, "seed": SEED, "max_tokens": LENGTH, "ignore_eos": True} | changes


def alone(client: Client, length: int, n: int, **changes: Any) -> list[tuple[int, ...]]:
    """REF of each sample: a request alone, with the seed that is documented for it, on a cold cache."""
    answers = []
    for index in range(n):
        own = options(length, **changes) | {"seed": sample_seed(SEED, index), "cache_salt": f"alone {length} {index}"}
        answers.append(client.complete(**own).token_ids)
    return answers


def tokens(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


@pytest.fixture(scope="module", params=[ROOMY, TIGHT], ids=["roomy", "tight"])
def field(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("samples")
    flags = ("--max-queued-requests", 10)
    with running_field(tiny, folder, executor=request.param, scheduler=flags) as started:
        yield started


@pytest.fixture(scope="module")
def references(field: Field) -> dict[int, list[tuple[int, ...]]]:
    return {length: alone(field.client, length, 4) for length in EDGES}


def test_F07_each_sample_is_a_request_with_its_own_seed(
    field: Field, references: dict[int, list[tuple[int, ...]]]
) -> None:
    """At every edge of a block; the second time the whole prompt is a prefix hit."""
    for length in EDGES:
        for _ in range(2):
            completions = field.client.samples(**options(length, n=4, cache_salt="together"))
            assert tokens(completions) == references[length]
            assert len(set(tokens(completions))) == 4
            usage = [completion.finish.usage for completion in completions]
            assert [each.prompt_tokens for each in usage] == [length] * 4
            assert [each.completion_tokens for each in usage] == [LENGTH] * 4
            assert {each.cached_tokens for each in usage[1:]} == {length - 1}
    field.check()


def test_samples_of_a_small_pool_preempt_each_other(field: Field, references: dict[int, list[tuple[int, ...]]]) -> None:
    since = len(field.bus.plans())
    long = {"max_tokens": 60}
    assert tokens(field.client.samples(**options(33, n=4, **long))) == alone(field.client, 33, 4, **long)
    field.check()
    preempted = [plan for plan in field.bus.plans()[since:] if plan["preempted"]]
    assert bool(preempted) == (field.bus.executor.flags[-1] == "5"), "or the test shows nothing"


def test_F07_samples_end_at_different_lengths_and_the_stream_ends_after_the_last(field: Field) -> None:
    whole = alone(field.client, 20, 4)
    stop = whole[2][4]
    expected = [answer[: answer.index(stop) + 1] if stop in answer else answer for answer in whole]
    assert len({len(answer) for answer in expected}) > 1
    request = pb.GenerateRequest(
        tokens=pb.TokenPrompt(ids=options(20)["token_ids"]),
        sampling=pb.SamplingParams(temperature=1.2, seed=SEED),
        stopping=pb.StopParams(max_tokens=LENGTH, ignore_eos=True, stop_token_ids=[stop]),
        samples=pb.SampleParams(n=4),
    )
    found: list[list[int]] = [[] for _ in range(4)]
    ends: list[pb.Finish | None] = [None] * 4
    with grpc.insecure_channel(field.bus.address) as channel:
        for response in generation_pb2_grpc.GenerationServiceStub(channel).Generate(request, timeout=60):
            assert ends[response.sample] is None, "nothing comes after a finish"
            assert response.first_index == len(found[response.sample])
            found[response.sample] += response.token_ids
            ends[response.sample] = response.finish if response.HasField("finish") else None
    assert [tuple(answer) for answer in found] == expected
    reasons = [end.reason for end in ends if end is not None]
    stopped = [answer[-1] == stop for answer in expected]
    assert reasons == [pb.FINISH_REASON_STOP if stops else pb.FINISH_REASON_LENGTH for stops in stopped]
    field.check()


def test_one_sample_after_the_other_joins_other_requests(
    field: Field, references: dict[int, list[tuple[int, ...]]]
) -> None:
    """Two groups and a request alone, all at once."""
    with field.paused():
        streams = [field.client.generate(**options(length, n=3)) for length in (17, 33)]
        other = field.client.generate(**options(31))
        assert all(stream.request_id() for stream in (*streams, other))
    for stream, length in zip(streams, (17, 33), strict=True):
        found: list[list[int]] = [[] for _ in range(3)]
        for delta in stream:
            found[delta.sample] += delta.token_ids
        assert [tuple(answer) for answer in found] == references[length][:3]
        assert [finish.reason for finish in stream.finishes] == [FinishReason.LENGTH] * 3
    assert tuple(token for delta in other for token in delta.token_ids) == references[31][0]
    field.check()


@pytest.mark.parametrize("how", ["cancel", "deadline", "leave"])
def test_a_request_ends_with_all_its_samples(field: Field, how: str) -> None:
    endless = options(20, n=4, max_tokens=200)
    if how == "deadline":
        completions = field.client.samples(**endless, time_limit_ms=50)
        assert {completion.finish.reason for completion in completions} == {FinishReason.DEADLINE}
    else:
        with Client(field.bus.address, reconnect=None if how == "leave" else DEFAULT_RECONNECT) as client:
            next(client.generate(**endless))  # the client tells the server, or only closes the call
    field.check()


def test_samples_count_against_the_limit_of_requests(field: Field) -> None:
    """Ten places."""
    with field.paused():
        stream = field.client.generate(**options(9, n=7))
        assert stream.request_id()
        with pytest.raises(Exhausted, match="counts as 4"):
            field.client.samples(**options(9, n=4))
        assert len(field.client.generate(**options(9, n=3)).request_id() or "") > 0
        stream.cancel()
    field.bus.wait_idle()  # until then there may be no place for the canary
    field.check()


@pytest.mark.parametrize("n", [0, 65, 10**9])
def test_more_samples_than_there_are_at_most(field: Field, n: int) -> None:
    with pytest.raises(InvalidRequest, match=r"samples\.n must be from 1 to 64"):
        field.client.samples(**options(9, n=n))
    field.check()


def test_n_larger_than_the_seats_and_the_pool(field: Field) -> None:
    """F16 (c): the prompt fits; its branches do not, and run one after the other."""
    completions = field.client.samples(**options(30, n=9, max_tokens=40))
    assert tokens(completions) == alone(field.client, 30, 9, max_tokens=40)
    field.check()


@pytest.fixture
def long_bus(tiny: Path, tmp_path: Path) -> Iterator[Bus]:
    scheduler = ("--journal", str(tmp_path / "journal"))
    executor = ("--num-blocks", "64", "--max-step-tokens", "64", "--num-threads", "1")
    with running_bus(tiny, tmp_path / "bus", executor=executor, scheduler=scheduler) as bus:
        yield bus


@pytest.mark.parametrize("killed", ["scheduler", "executor"])
def test_samples_survive_a_kill(long_bus: Bus, killed: str) -> None:
    """The client comes back to each sample where it was, without gap or repeat: it checks the indexes itself."""
    changes = {"max_tokens": 180}
    with Client(long_bus.address) as client:
        expected = alone(client, 33, 4, **changes)
        with client.generate(**options(33, n=4, **changes)) as stream:
            found: list[list[int]] = [[] for _ in range(4)]
            service = long_bus.scheduler if killed == "scheduler" else long_bus.executor
            for delta in stream:
                assert delta.first_index == len(found[delta.sample])
                found[delta.sample] += delta.token_ids
                if service is not None and all(len(answer) > 20 for answer in found):
                    service.kill()
                    time.sleep(0.1)
                    service.restart()
                    service = None  # type: ignore[assignment]
            assert service is None, "it was never killed"
        assert [tuple(answer) for answer in found] == expected
    long_bus.wait_idle()


def test_a_successor_knows_the_samples_that_have_ended(long_bus: Bus) -> None:
    """Some have ended before the kill, some after; an `Attach` afterwards reads all of them whole."""
    with Client(long_bus.address) as client:
        whole = alone(client, 33, 3, max_tokens=150)
        stop = next(token for token in whole[1] if token not in whole[0] and whole[1].index(token) < 60)
        expected = [answer[: answer.index(stop) + 1] if stop in answer else answer for answer in whole]
        ask = options(33, n=3, max_tokens=150, stop_token_ids=[stop], request_id="three")
        with client.generate(**ask) as stream:
            for delta in stream:
                if delta.sample == 0 and delta.first_index > len(expected[1]) + 5:
                    break
            long_bus.scheduler.kill()
            long_bus.scheduler.restart()
            list(stream)
    found: list[list[int]] = [[] for _ in range(3)]
    with grpc.insecure_channel(long_bus.address) as channel:
        attach = pb.AttachRequest(request_id="three", next_indexes=[0, 2])
        for response in generation_pb2_grpc.GenerationServiceStub(channel).Attach(attach, timeout=60):
            found[response.sample] += response.token_ids
    assert [tuple(answer) for answer in found] == [expected[0], expected[1][2:], expected[2]]
    long_bus.wait_idle()


def test_the_prompt_is_stored_once(long_bus: Bus) -> None:
    """200 tokens are 12 full blocks and a half; eight samples hold those 12 and two or three of their own each."""
    with Client(long_bus.address) as client, client.generate(**options(200, n=8, max_tokens=40)) as stream:
        readings = []

        def all_run() -> bool:
            readings.append(long_bus.status())
            return readings[-1].running == 8

        assert stream.request_id()
        wait_until(all_run, "all samples run", 20)
        assert readings[-1].pool.held <= 12 + 8 * 4
        list(stream)
    plans = [plan for plan in long_bus.plans() if rows(plan)]
    assert sum(count for plan in plans for _, count in plan["new"]) <= 200 + 7 + 64, "computed once"
    long_bus.wait_idle()
