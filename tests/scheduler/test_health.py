"""A server is healthy while it takes new requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from common.grpc_server import GrpcServer
from scheduler_svc.health import Health
from scheduler_svc.journal import Journal, NoJournal
from scheduler_svc.loop import SchedulerLoop


class Said:
    """Stands in for a server, and keeps what its health service says."""

    def __init__(self) -> None:
        self.serving: list[bool] = []

    async def set_serving(self, serving: bool) -> None:
        self.serving.append(serving)


class State:
    """Stands in for a loop and its journal."""

    def __init__(self) -> None:
        self.executor: object | None = object()
        self.draining = False
        self.fails = False

    def info(self) -> object | None:
        return self.executor

    def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        self.on_change = on_change


@pytest.mark.parametrize("change", [{"executor": None}, {"draining": True}, {"fails": True}])
async def test_each_reason_to_take_nothing_is_one_to_be_unhealthy(change: dict[str, Any]) -> None:
    said, state = Said(), State()
    health = Health(cast(GrpcServer, said), cast(SchedulerLoop, state), cast(Journal, state))
    await health.tell()
    for name, value in change.items():
        setattr(state, name, value)
    await state.on_change()
    assert said.serving == [True, False]


async def test_no_journal_cannot_fail() -> None:
    said = Said()
    await Health(cast(GrpcServer, said), cast(SchedulerLoop, State()), NoJournal()).tell()
    assert said.serving == [True]
