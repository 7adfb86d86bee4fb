"""The client for asyncio against a real server."""

from __future__ import annotations

import asyncio

import pytest

from citybus import AsyncClient, Cancelled, Delta, FinishReason, InvalidRequest, Model, NotFound, Unavailable
from tests.citybus.conftest import Served
from tests.citybus.scripted_server import ANSWER, FRANCE, REFUSED, ScriptedServer, serving


async def test_stream_gives_every_delta_then_the_finish(served: Served) -> None:
    async with AsyncClient(served.address) as client, client.generate(FRANCE, request_id="mine") as stream:
        assert await stream.request_id() == "mine"
        deltas = [delta async for delta in stream]
        assert deltas == [Delta(2 * i, (2 * i, 2 * i + 1), text) for i, text in enumerate(ANSWER)]
        assert stream.finish.reason is FinishReason.STOP


async def test_complete_serves_many_at_once(served: Served) -> None:
    async with AsyncClient(served.address) as client:
        answers = await asyncio.gather(*(client.complete(FRANCE, request_id=f"r{i}") for i in range(20)))
    assert [answer.request_id for answer in answers] == [f"r{i}" for i in range(20)]
    assert {answer.text for answer in answers} == {"The capital of France is Paris."}


async def test_finish_is_not_there_before_the_end(served: Served) -> None:
    async with AsyncClient(served.address) as client, client.generate("forever") as stream:
        await anext(stream)
        with pytest.raises(RuntimeError, match="read it to its end"):
            _ = stream.finish


async def test_leaving_the_stream_cancels_it_on_the_server(served: Served) -> None:
    async with AsyncClient(served.address) as client:
        async with client.generate("forever") as stream:
            assert (await anext(stream)).text == ANSWER[0]
        assert await asyncio.to_thread(served.server.cancelled.acquire, timeout=30)


async def test_cancel_ends_the_reader_with_an_error_of_ours(served: Served) -> None:
    async with AsyncClient(served.address) as client, client.generate("forever") as stream:
        asyncio.get_running_loop().call_later(0.1, stream.cancel)
        with pytest.raises(Cancelled):
            [delta async for delta in stream]


async def test_cancelling_the_task_stays_a_cancelled_task(served: Served) -> None:
    async with AsyncClient(served.address) as client:
        before = len(served.server.requests)
        task = asyncio.create_task(client.complete("forever"))
        async with asyncio.timeout(30):
            while len(served.server.requests) == before:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(served.server.cancelled.acquire, timeout=30)


async def test_errors_are_typed(served: Served) -> None:
    async with AsyncClient(served.address) as client:
        with pytest.raises(InvalidRequest, match=REFUSED):
            await client.complete("refuse")
        with pytest.raises(NotFound, match="this server has 'tiny'"):
            await client.count_tokens("one", model="absent")
        with pytest.raises(Unavailable) as refused:
            await client.complete("drain")
        with pytest.raises(Unavailable, match="the server cancelled the call"):
            await client.complete("gone")
    assert refused.value.retry_after_s == 1.5


async def test_models_and_count_tokens(served: Served) -> None:
    async with AsyncClient(served.address) as client:
        assert await client.models() == [Model("tiny", 512, 272, has_chat_template=True)]
        assert await client.count_tokens("one two three") == 3


async def test_wait_ready_waits_for_the_server_to_turn_healthy() -> None:
    with serving(ScriptedServer(), healthy_after_s=0.3) as address:
        async with AsyncClient(address) as client:
            with pytest.raises(Unavailable, match=r"within 0\.1 s"):
                await client.wait_ready(timeout=0.1)
            await client.wait_ready(timeout=60)
