"""The service over real gRPC: sessions, fences, order, and answers while a step is computed."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from citybus.executor.v1 import executor_pb2 as pb
from common import wire
from common.step import Draft, NewSequence, Sampling, ScheduledSequence, SealedBlock
from executor_svc.server import READ_AHEAD
from tests.executor.service_client import SERVICE, TIMEOUT_S, Client, ClientSession, GatedExecutor
from tests.fakes import INFO, FakeExecutor, reference_output

PROMPT = tuple(range(20))


@pytest.fixture
async def gated() -> AsyncIterator[Client]:
    client = Client(GatedExecutor())
    await client.start()
    yield client
    assert isinstance(client.executor, GatedExecutor)
    client.executor.gate.release(1_000)
    await client.stop()


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client(FakeExecutor())
    await client.start()
    yield client
    await client.stop()


def new(sequence_id: int = 1, blocks: Sequence[int] = (0, 1)) -> NewSequence:
    return NewSequence(sequence_id, PROMPT, len(PROMPT), 0, len(PROMPT), tuple(blocks), Sampling(temperature=0))


async def until(condition: Any) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_session_from_opening_to_end(client: Client) -> None:
    session = await client.session()
    await session.send(new_sequences=(new(),))
    first = await session.result()
    await session.send(scheduled=(ScheduledSequence(1, 1),))
    second = await session.result()
    assert [first.step, second.step] == [1, 2]
    assert [token.sequence_id for token in first.sampled + second.sampled] == [1, 1]
    await session.call.done_writing()
    assert await session.ended() == (grpc.StatusCode.OK, "")
    assert client.metric("executor_sessions_opened_total") == 1
    assert client.metric("executor_computed_tokens_total", kind="prefill") == len(PROMPT) - 1
    assert client.metric("executor_computed_tokens_total", kind="decode") == 2
    assert client.metric("executor_steps_total") == 2
    assert client.metric("executor_step_tokens_sum") == 21
    assert client.metric("executor_idle_seconds_total") == pytest.approx((first.idle_ns + second.idle_ns) / 1e9)
    assert client.metric("executor_step_seconds_count") == 2


async def test_guesses_that_are_wrong_are_counted_apart(client: Client) -> None:
    """Of three guesses the first is right: three tokens were drawn from, in two steps, and two computed for nothing."""
    second, third = reference_output(PROMPT, 3, Sampling(temperature=0), INFO.vocab_size)[1:]
    session = await client.session()
    await session.send(new_sequences=(new(),))
    await session.result()
    draft = Draft(1, (second, (third + 1) % INFO.vocab_size, 0))
    await session.send(scheduled=(ScheduledSequence(1, 1),), drafts=(draft,))
    assert [token.token_id for token in (await session.result()).sampled] == [second, third]
    kinds = ("prefill", "decode", "rejected")
    counts = [client.metric("executor_computed_tokens_total", kind=kind) for kind in kinds]
    assert counts == [len(PROMPT) - 1, 3, 2]
    assert client.metric("executor_step_tokens_sum") == sum(counts)


async def test_describe(client: Client) -> None:
    response = await client.stub.Describe(pb.DescribeRequest(), timeout=TIMEOUT_S)
    assert wire.info_from_pb(response) == INFO


async def test_the_next_plan_is_taken_in_while_one_is_computed(gated: Client) -> None:
    executor = gated.executor
    assert isinstance(executor, GatedExecutor)
    session = await gated.session()
    await session.send(new_sequences=(new(),))
    for _ in range(3):
        await session.send(scheduled=(ScheduledSequence(1, 1),))
    await until(lambda: executor.started == [1] and gated.servicer._thread._work_queue.qsize() == 3)
    executor.gate.release(4)
    assert [(await session.result()).step for _ in range(4)] == [1, 2, 3, 4]
    assert len(executor.threads) == 1


async def test_plans_beyond_the_read_ahead_wait_and_none_is_lost(gated: Client) -> None:
    executor = gated.executor
    assert isinstance(executor, GatedExecutor)
    session = await gated.session()
    await session.send(new_sequences=(new(),))
    for _ in range(3 * READ_AHEAD):
        await session.send(scheduled=(ScheduledSequence(1, 1),) if session.last_step < 12 else ())
    await until(lambda: gated.servicer._thread._work_queue.qsize() >= READ_AHEAD - 1)
    await asyncio.sleep(0.1)
    assert gated.servicer._thread._work_queue.qsize() <= READ_AHEAD + 1
    executor.gate.release(100)
    assert [(await session.result()).step for _ in range(25)] == list(range(1, 26))


async def test_the_service_answers_while_a_step_is_computed(gated: Client) -> None:
    executor = gated.executor
    assert isinstance(executor, GatedExecutor)
    session = await gated.session()
    await session.send(new_sequences=(new(),))
    await until(lambda: executor.started == [1])
    health: Any = health_pb2_grpc.HealthStub(gated.channel)
    for service in ("", SERVICE):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    await gated.stub.Describe(pb.DescribeRequest(), timeout=TIMEOUT_S)
    assert executor.started == [1]


async def test_a_newer_session_fences_the_older_one(client: Client) -> None:
    older = await client.session()
    await older.send(new_sequences=(new(),))
    await older.result()
    newer = await client.session(resume=True)
    assert newer.term > older.term
    code, words = await older.ended()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "newer scheduler" in words
    newer.last_step = 1
    await newer.send(scheduled=(ScheduledSequence(1, 1),))
    assert (await newer.result()).step == 2


async def test_a_scheduler_that_was_replaced_is_refused_when_it_comes_back(client: Client) -> None:
    await client.session(scheduler_id=b"first")
    again = await client.session(scheduler_id=b"first")
    newer = await client.session(scheduler_id=b"second")
    code, _ = await again.ended()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    call = client.call()
    await call.write(pb.ExecuteRequest(open=pb.OpenSession(epoch=INFO.epoch, scheduler_id=b"first")))
    code, words = await ClientSession(call, 0).ended()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "newer scheduler" in words
    await newer.send(new_sequences=(new(),))
    assert (await newer.result()).step == 1


async def test_a_plan_of_an_older_term_is_refused(client: Client) -> None:
    session = await client.session()
    session.term -= 1
    await session.send()
    code, _ = await session.ended()
    assert code is grpc.StatusCode.FAILED_PRECONDITION


async def test_another_epoch_is_refused_and_disturbs_nobody(client: Client) -> None:
    session = await client.session()
    stranger = client.call()
    await stranger.write(pb.ExecuteRequest(open=pb.OpenSession(epoch=b"another")))
    code, words = await ClientSession(stranger, 0).ended()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "epoch" in words
    await session.send(new_sequences=(new(),))
    assert (await session.result()).step == 1


@pytest.mark.parametrize(
    "message",
    [pb.ExecuteRequest(), pb.ExecuteRequest(plan=pb.StepPlan(term=1, step=1)), None],
)
async def test_a_session_must_be_opened_first(client: Client, message: pb.ExecuteRequest | None) -> None:
    call = client.call()
    if message is not None:
        await call.write(message)
    await call.done_writing()
    code, words = await ClientSession(call, 0).ended()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "`open`" in words


async def test_a_second_opening_in_a_session_is_refused(client: Client) -> None:
    session = await client.session()
    await session.call.write(pb.ExecuteRequest(open=pb.OpenSession(epoch=INFO.epoch)))
    code, words = await session.ended()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "`plan`" in words


async def test_nothing_is_executed_after_a_refused_plan(gated: Client) -> None:
    executor = gated.executor
    assert isinstance(executor, GatedExecutor)
    session = await gated.session()
    await session.send(new_sequences=(new(1, (0, 99)),))
    session.last_step = 0
    await session.send(new_sequences=(new(1),))
    await until(lambda: executor.started == [1] and gated.servicer._thread._work_queue.qsize() == 1)
    executor.gate.release(2)
    code, words = await session.ended()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "block outside the pool" in words
    assert executor.started == [1]
    assert (await gated.pages())[0].sequences == ()


async def test_columns_that_do_not_fit_are_refused_after_the_plans_before(client: Client) -> None:
    session = await client.session()
    await session.send(new_sequences=(new(),))
    await session.call.write(pb.ExecuteRequest(plan=pb.StepPlan(term=session.term, step=2, copy_sources=[1])))
    assert (await session.result()).step == 1
    code, words = await session.ended()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "copy_sources" in words


async def test_sequences_stay_when_the_stream_ends(client: Client) -> None:
    session = await client.session()
    await session.send(new_sequences=(new(),), sealed=(SealedBlock(0, b"h" * 16),))
    await session.result()
    session.call.cancel()
    (page,) = await client.pages()
    assert page.last_step == 1
    assert [sequence.sequence_id for sequence in page.sequences] == [1]
    assert page.cached == (SealedBlock(0, b"h" * 16),)
    await client.session()
    assert (await client.pages())[0].sequences == ()


async def test_plans_queued_by_a_stream_that_broke_are_not_executed(gated: Client) -> None:
    executor = gated.executor
    assert isinstance(executor, GatedExecutor)
    session = await gated.session()
    for _ in range(4):
        await session.send()
    await until(lambda: executor.started == [1] and gated.servicer._thread._work_queue.qsize() == 3)
    session.call.cancel()
    served = gated.servicer._session
    assert served is not None
    await until(lambda: served.over is not None)
    executor.gate.release(4)
    await gated.pages()
    assert executor.started == [1]


async def test_reconcile_in_pages(client: Client) -> None:
    session = await client.session()
    await session.send(new_sequences=tuple(new(key, (2 * key, 2 * key + 1)) for key in range(5)))
    await session.result()
    pages = await client.pages(page_size=2)
    assert [len(page.sequences) for page in pages] == [2, 2, 1]
    assert len(await client.pages()) == 1
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.pages(page_size=0)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_F37_a_plan_of_many_megabytes_passes(client: Client) -> None:
    """256 sequences of 8,000 blocks and a prompt of 64k tokens; refused for what it says, never for its size."""
    session = await client.session()
    big = replace(new(), block_ids=tuple(range(1_000_000, 1_008_000)), token_ids=(1,) * 65_536)
    await session.send(new_sequences=tuple(replace(big, sequence_id=key) for key in range(256)))
    code, words = await session.ended()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "seats" in words


async def test_a_step_that_fails_is_a_result(client: Client) -> None:
    client.executor.fail = lambda plan: "RuntimeError" if plan.step == 1 else None
    session = await client.session()
    await session.send(new_sequences=(new(),))
    assert (await session.result()).error == "RuntimeError"
    await session.send(new_sequences=(new(),))
    assert (await session.result()).error is None
    assert client.metric("executor_failed_steps_total") == 1


async def test_draining_waits_for_what_is_resident(client: Client) -> None:
    session = await client.session()
    await session.send(new_sequences=(new(),))
    await session.result()
    draining = asyncio.create_task(client.servicer.drain())
    await asyncio.sleep(1)
    assert not draining.done()
    refused = client.call()
    await refused.write(pb.ExecuteRequest(open=pb.OpenSession(epoch=INFO.epoch)))
    assert (await ClientSession(refused, 0).ended())[0] is grpc.StatusCode.UNAVAILABLE
    await session.send(finished_ids=(1,))
    assert (await session.result()).step == 2
    await asyncio.wait_for(draining, TIMEOUT_S)
    assert (await session.ended())[0] is grpc.StatusCode.UNAVAILABLE


async def test_a_drain_cut_short_ends_the_session_with_unavailable(gated: Client) -> None:
    executor = gated.executor
    assert isinstance(executor, GatedExecutor)
    session = await gated.session()
    for _ in range(3):
        await session.send()
    await until(lambda: executor.started == [1])
    draining = asyncio.create_task(gated.servicer.drain())
    await asyncio.sleep(0.01)
    draining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await draining
    executor.gate.release(3)
    assert await session.ended() == (grpc.StatusCode.UNAVAILABLE, "the executor is shutting down")
    assert executor.started == [1]


def hostile_bytes(marker: Path) -> Iterator[bytes]:
    class Planted:
        def __reduce__(self) -> tuple[Any, tuple[Path]]:
            return (Path.touch, (marker,))

    yield pickle.dumps(Planted())
    yield bytes(range(256)) * 40
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 2_000
    yield b"GET / HTTP/1.1\r\n\r\n"


async def test_F55_strangers_on_the_port_run_nothing_and_stop_nothing(client: Client, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    host, _, port = client.address.rpartition(":")
    for content in hostile_bytes(marker):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(content)
        await writer.drain()
        writer.close()
    raw: Any = client.channel.stream_stream(f"/{SERVICE}/Execute")
    for content in hostile_bytes(marker):
        call = raw(timeout=TIMEOUT_S)
        await call.write(content)
        assert await call.code() is not grpc.StatusCode.OK
    valid = pb.ExecuteRequest(open=pb.OpenSession(epoch=INFO.epoch)).SerializeToString()
    call = raw(timeout=TIMEOUT_S)
    await call.write(valid[:-1])
    assert await call.code() is not grpc.StatusCode.OK
    session = await client.session()
    await session.send(new_sequences=(new(),))
    assert len((await session.result()).sampled) == 1
    assert not marker.exists()
