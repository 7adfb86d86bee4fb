"""Where the operator's wishes about policies meet the live one."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import structlog

from common.errors import AlreadyExists, InvalidRequest
from common.metrics import SchedulerMetrics
from scheduler_svc.core.answers import PolicyFault
from scheduler_svc.core.guard import GuardedPolicy, PolicyChange
from scheduler_svc.core.policy import Policy
from scheduler_svc.core.shadow import Shadow
from scheduler_svc.events import EventBus, PoliciesReloaded, PolicyChanged, PolicyRolledBack
from scheduler_svc.policy_memory import PolicyMemory
from scheduler_svc.policy_shelf import PolicyShelf, Reloaded

log = structlog.get_logger()


def announce(metrics: SchedulerMetrics, events: EventBus) -> Callable[[PolicyChange], None]:
    """What has a change of policy known: by log, metric and event."""

    def on_change(change: PolicyChange) -> None:
        metrics.set_policy(change.policy)
        if change.fault is None:
            log.info("policy changed", policy=change.policy, before=change.before)
            events.publish(PolicyChanged(change.policy, change.before))
            return
        metrics.policy_rollbacks.labels(policy=change.before).inc()
        log.error("policy rolled back", policy=change.policy, failed=change.before, reason=change.fault)
        events.publish(PolicyRolledBack(change.policy, change.before, change.fault))

    return on_change


class Stand(Policy):
    """Hands a copy of the live policy's state to one that is only tried."""

    name = "stand"

    def __init__(self, guarded: GuardedPolicy) -> None:
        super().__init__()
        self._guarded = guarded

    def export_state(self) -> Mapping[str, object]:
        return copy.deepcopy(dict(self._guarded.live.export_state()))


class PolicyDesk:
    """Sets, reloads and tries policies; what is set is in `memory` before its operator hears of it.

    `time_limit` is for the decisions of one that is only tried.
    """

    def __init__(
        self,
        guarded: GuardedPolicy,
        shelf: PolicyShelf,
        memory: PolicyMemory,
        events: EventBus,
        time_limit: AbstractContextManager[object] | None = None,
    ) -> None:
        self.guarded = guarded
        self.shelf = shelf
        self._memory = memory
        self._events = events
        self._time_limit = time_limit
        self._reloading = asyncio.Lock()

    async def set(self, name: str, parameters: Mapping[str, str]) -> str:
        """Let a policy decide; returns the name of the one before. Raises as `PolicyShelf.make`."""
        policy, before = self.shelf.make(name, parameters), self.guarded.name
        try:
            self.guarded.set(policy)
        except PolicyFault as error:
            raise InvalidRequest(str(error)) from error
        await self._memory.saved()
        return before

    async def reload(self) -> Reloaded:
        """Read the policy folder anew; new code of the live policy is set at once."""
        async with self._reloading:
            found = await self.shelf.reload()
        renewed = self.shelf.renewed(self.guarded.live)
        if renewed is not None:
            try:
                self.guarded.set(renewed)
            except PolicyFault as error:
                raise InvalidRequest(str(error)) from error
            await self._memory.saved()
        if found.loaded:
            self._events.publish(PoliciesReloaded(found.loaded))
        return found

    async def dry_run(self, name: str, parameters: Mapping[str, str], duration_s: float) -> Shadow:
        """Ask a policy beside the live one for a while. Raises as `PolicyShelf.make`, and where one is tried now."""
        policy = self.shelf.make(name, parameters)
        if self.guarded.observer is not None:
            raise AlreadyExists("a policy is being tried already: wait until that ends")
        trial = GuardedPolicy(Stand(self.guarded), time_limit=self._time_limit)
        try:
            trial.set(policy)
        except PolicyFault as error:
            raise InvalidRequest(str(error)) from error
        self.guarded.observer = shadow = Shadow(trial)
        try:
            await asyncio.sleep(duration_s)
        finally:
            self.guarded.observer = None
        return shadow
