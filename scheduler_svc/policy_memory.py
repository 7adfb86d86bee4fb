"""What of the live policy outlives a scheduler: its name, its parameters and its state, in the journal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog

from common.errors import InvalidRequest, NotFound
from scheduler_svc import policy_parameters
from scheduler_svc.core.answers import PolicyFault
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.policy import Policy
from scheduler_svc.journal import Journal
from scheduler_svc.policy_shelf import PolicyShelf

MAX_RECORD_BYTES = 2**20
"""A policy with a larger state goes on without it."""

INTERVAL_S = 1.0
"""Least time between two writings, in seconds. What the state has learned since is lost in a crash."""

_MAX_SHARE = 0.01
"""Most of the time that is spent on it: a large state is written less often."""

log = structlog.get_logger()


class PolicyMemory:
    """Writes down what `guarded` does, and goes on with what was written; `given` is the policy of the command line.

    Without a lasting journal it does nothing.
    """

    def __init__(self, guarded: GuardedPolicy, journal: Journal, given: str) -> None:
        self._guarded = guarded
        self._journal = journal
        self._given = given
        self._written = journal.policy
        self._told_of: Policy | None = None

    def restore(self, shelf: PolicyShelf) -> None:
        """Go on with the policy of the scheduler before this one, where the command line still gives the same one.

        A policy that cannot be made any more, or refuses its state, leaves that of the command line.
        """
        if self._written is None or self._written == self._record():
            return
        known = json.loads(self._written)
        if known["given"] != self._given:
            log.info("policy of the command line decides, and no longer that set before", before=known["name"])
            return
        try:
            self._guarded.set(shelf.make(known["name"], known["parameters"]), known["state"])
        except (NotFound, InvalidRequest, PolicyFault) as error:
            log.warning("policy set before cannot go on", policy=known["name"], reason=str(error), instead=self._given)

    def save(self) -> None:
        """Hand what is new to the journal, which writes it soon."""
        if not self._journal.lasts or self._guarded.fault is not None:
            return
        record = self._record()
        if record != self._written:
            self._written = record
            self._journal.remember_policy(record)

    async def saved(self) -> None:
        """Return once what is live now is written."""
        self.save()
        await self._journal.flushed()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Save again and again inside the `async with` block, and at its end."""
        keeper = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
            self.save()

    async def _keep(self) -> None:
        while self._journal.lasts:
            started = time.thread_time()
            self.save()
            await asyncio.sleep(max(INTERVAL_S, (time.thread_time() - started) / _MAX_SHARE))

    def _record(self) -> bytes:
        """All of it as JSON; without the state where that is too large, or does not come back the same."""
        live, state = self._guarded.live, self._guarded.exported()
        known = {"given": self._given, "name": live.name, "parameters": policy_parameters.show(live.parameters)}
        try:
            return _encoded(known, state)
        except Exception as error:  # whatever a state holds
            if self._told_of is not live:
                self._told_of = live
                log.warning("state of the policy cannot be kept", policy=live.name, reason=f"{error}"[:200])
            return _encoded(known, {})


def says_something(record: bytes) -> bool:
    """Whether a policy was set, or has learned something: whether a scheduler with this record does anything else than
    one with the command line alone.
    """
    known = json.loads(record)
    return bool(known["name"] != known["given"] or known["parameters"] or known["state"])


def _encoded(known: Mapping[str, object], state: Mapping[str, object]) -> bytes:
    """Raises ValueError, or whatever the state does."""
    text = json.dumps({**known, "state": state}, allow_nan=False)
    if len(text) > MAX_RECORD_BYTES:
        raise ValueError(f"it takes {len(text)} bytes, and {MAX_RECORD_BYTES} are kept")
    if json.loads(text)["state"] != state:
        raise ValueError("it is not made of dicts with texts as keys, lists, texts, numbers, booleans and None")
    return text.encode()
