"""One attempt to take an executor over."""

from __future__ import annotations

from dataclasses import dataclass

from common.step import ExecutorInfo
from scheduler_svc.core.adoption import Residency
from scheduler_svc.executor_client import ExecutorClient, Session

TIMEOUT_S = 2.0
"""For each of the calls it takes, in seconds."""


@dataclass(frozen=True, slots=True)
class Reached:
    """An open session with an executor, and what that holds of ours."""

    session: Session
    info: ExecutorInfo
    held: Residency


async def reach(client: ExecutorClient, *, anew: bool, epoch: bytes | None) -> Reached:
    """Open a session. Raises `SessionLost`, and `Fenced` where another scheduler has taken the executor over.

    What the executor holds is kept where this process has not driven one yet (`anew`), or where it is in the `epoch`
    that it drove last and left without a contradiction. Our session is opened first: it is read when no other
    scheduler can change it any more.
    """
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
