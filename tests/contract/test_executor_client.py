"""The scheduler's client of an executor over real gRPC: whose session it is, and of which model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from common.model_identity import ModelIdentity
from common.step import StepPlan
from scheduler_svc.executor_client import ExecutorClient, Fenced, OtherModel, SessionLost
from scheduler_svc.reach import reach
from tests.contract.wire_executor import Served
from tests.fakes import INFO, FakeExecutor

TIMEOUT_S = 30.0


@pytest.fixture
async def clients() -> AsyncIterator[tuple[ExecutorClient, ExecutorClient]]:
    """Two schedulers' clients of one executor."""
    with Served(FakeExecutor()) as served:
        pair = ExecutorClient(served.target), ExecutorClient(served.target)
        yield pair
        for client in pair:
            await client.close()


async def test_who_was_replaced_does_not_come_back(clients: tuple[ExecutorClient, ExecutorClient]) -> None:
    first, second = clients
    async with await first.open(INFO.epoch, resume=True, timeout_s=TIMEOUT_S):
        pass  # broken before it can hear of the other one
    session = await second.open(INFO.epoch, resume=True, timeout_s=TIMEOUT_S)
    for _ in range(2):
        with pytest.raises(Fenced, match="newer scheduler"):
            await first.open(INFO.epoch, resume=True, timeout_s=TIMEOUT_S)
    await session.send(StepPlan(session.term, 1))
    assert (await session.receive()).step == 1


async def test_who_was_not_replaced_comes_back_after_a_break(clients: tuple[ExecutorClient, ExecutorClient]) -> None:
    first, _ = clients
    for _ in range(3):
        async with await first.open(INFO.epoch, resume=False, timeout_s=TIMEOUT_S) as session:
            await session.send(StepPlan(session.term, 1))
            assert (await session.receive()).step == 1


async def test_another_epoch_is_a_lost_session(clients: tuple[ExecutorClient, ExecutorClient]) -> None:
    first, _ = clients
    await first.open(INFO.epoch, resume=False, timeout_s=TIMEOUT_S)
    with pytest.raises(SessionLost, match="epoch") as caught:
        await first.open(b"another epoch...", resume=False, timeout_s=TIMEOUT_S)
    assert not isinstance(caught.value, Fenced)


OURS, OTHER = bytes(range(32)), bytes(range(1, 33))


async def test_an_executor_of_another_tokenizer_is_not_taken_over(capsys: pytest.CaptureFixture[str]) -> None:
    turns = iter((True, True, False))
    with Served(FakeExecutor(replace(INFO, tokenizer_digest=OTHER))) as served:
        client = ExecutorClient(served.target, model=ModelIdentity("tiny", OURS))
        with pytest.raises(OtherModel) as caught:
            await client.describe(TIMEOUT_S)
        assert str(caught.value) == (
            "the executor serves fake (tokenizer 010203040506), this scheduler tiny (tokenizer 000102030405): what one"
            " calls a token is another text to the other; start both with the same model folder"
        )
        assert await reach(client, anew=True, epoch=None, may_go_on=lambda: next(turns)) is None
        session = await client.open(INFO.epoch, resume=True, timeout_s=TIMEOUT_S)
        assert session.term == 1, "no session was opened before"
        await client.close()
    said = capsys.readouterr().out
    assert said.count("waiting for the executor") == said.count("start both with the same model folder") == 1
    assert "error" in said


@pytest.mark.parametrize(
    ("ours", "theirs"), [(OURS, OURS), (OURS, b""), (b"", OTHER)], ids=["same", "theirs unknown", "ours unknown"]
)
async def test_an_executor_of_the_same_or_an_unknown_tokenizer_is_taken_over(ours: bytes, theirs: bytes) -> None:
    with Served(FakeExecutor(replace(INFO, tokenizer_digest=theirs))) as served:
        client = ExecutorClient(served.target, model=ModelIdentity("tiny", ours))
        reached = await reach(client, anew=True, epoch=None, may_go_on=lambda: False)
        assert reached is not None
        assert reached.info.tokenizer_digest == theirs
        await client.close()
