"""The scheduler's client of an executor over real gRPC: whose session it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from common.step import StepPlan
from scheduler_svc.executor_client import ExecutorClient, Fenced, SessionLost
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
