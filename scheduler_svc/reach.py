"""How an executor is taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from common.step import ExecutorInfo
from scheduler_svc.core.adoption import Residency
from scheduler_svc.executor_client import ExecutorClient, Fenced, Refused, Session, SessionLost

TIMEOUT_S = 2.0
"""For each of the calls it takes, in seconds."""
RETRY_S = 0.2
"""Between two attempts."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reached:
    """An open session with an executor, and what that holds of ours."""

    session: Session
    info: ExecutorInfo
    held: Residency


async def reach(
    client: ExecutorClient, *, anew: bool, epoch: bytes | None, may_go_on: Callable[[], bool]
) -> Reached | None:
    """Open a session with the executor, however long it takes to reach it.

    None where `may_go_on`, asked after each attempt that failed, says no. Raises `Fenced` where another scheduler has
    taken the executor over.

    What the executor holds is kept where this process has not driven one yet (`anew`), or where it is in the `epoch`
    that it drove last and left without a contradiction.
    """
    told: type[SessionLost] | None = None
    while True:
        try:
            return await _attempt(client, anew=anew, epoch=epoch)
        except SessionLost as error:
            if isinstance(error, Fenced):
                raise
            if type(error) is not told:  # an executor that was not there may turn out to be the wrong one
                say = log.error if isinstance(error, Refused) else log.info
                say("waiting for the executor", address=client.address, reason=str(error))
                told = type(error)
        await asyncio.sleep(RETRY_S)
        if not may_go_on():
            return None


async def _attempt(client: ExecutorClient, *, anew: bool, epoch: bytes | None) -> Reached:
    """Our session is opened first, and what the executor holds is read when no other scheduler can change it."""
    info = await client.describe(TIMEOUT_S)
    resume = anew or info.epoch == epoch
    session = await client.open(info.epoch, resume=resume, timeout_s=TIMEOUT_S)
    if not resume:
        return Reached(session, info, Residency())
    try:
        return Reached(session, info, Residency.of(await client.reconcile(TIMEOUT_S)))
    except BaseException:
        session.cancel()
        raise
