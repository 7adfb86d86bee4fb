"""The operator's service."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from typing import Any

import grpc

from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc
from common.errors import InvalidRequest
from scheduler_svc import admin_messages, policy_parameters
from scheduler_svc.events import DrainingChanged, EventBus
from scheduler_svc.loop import SchedulerLoop
from scheduler_svc.policy_desk import PolicyDesk

MAX_DRY_RUN_MS = 600_000
DEFAULT_DUMP = 100
MAX_DUMP = 1000

Context = grpc.aio.ServicerContext[Any, Any]


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Answers from the loop's own state. `on_draining` is told when new requests are refused or taken again."""

    def __init__(
        self,
        loop: SchedulerLoop,
        desk: PolicyDesk,
        events: EventBus,
        on_draining: Callable[[], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._desk = desk
        self._events = events
        self._on_draining = on_draining
        self._started = time.monotonic()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        info = self._loop.info()
        response = pb.GetStatusResponse(
            version=version("citybus"),
            model=info.model if info else "",
            policy=self._desk.guarded.name,
            executor_connected=info is not None,
            draining=self._loop.draining,
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            max_running=info.max_sequences if info else 0,
        )
        if self._loop.core is not None:
            admin_messages.add_readings(response, self._loop.core, info.block_size if info else 0)
        return response

    async def ListPolicies(self, request: pb.ListPoliciesRequest, context: Context) -> pb.ListPoliciesResponse:
        entries = self._desk.shelf.entries().items()
        return pb.ListPoliciesResponse(policies=[admin_messages.policy_info(*entry) for entry in entries])

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Context) -> pb.GetPolicyResponse:
        live = self._desk.guarded.live
        return pb.GetPolicyResponse(name=live.name, parameters=policy_parameters.show(live.parameters))

    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Context) -> pb.SetPolicyResponse:
        return pb.SetPolicyResponse(before=await self._desk.set(request.name, request.parameters))

    async def ReloadPolicies(self, request: pb.ReloadPoliciesRequest, context: Context) -> pb.ReloadPoliciesResponse:
        found = await self._desk.reload()
        faults = [pb.PolicyFileFault(file=file, reason=reason) for file, reason in found.faults.items()]
        return pb.ReloadPoliciesResponse(loaded=found.loaded, faults=faults)

    async def DryRunPolicy(self, request: pb.DryRunPolicyRequest, context: Context) -> pb.DryRunPolicyResponse:
        if not 0 < request.duration_ms <= MAX_DRY_RUN_MS:
            raise InvalidRequest(f"duration_ms must be 1 to {MAX_DRY_RUN_MS}")
        shadow = await self._desk.dry_run(request.name, request.parameters, request.duration_ms / 1000)
        return admin_messages.dry_run(shadow)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        await self._set_draining(True)
        core = self._loop.core
        return pb.DrainResponse(in_flight=len(core.live()) if core is not None else 0)

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:
        await self._set_draining(False)
        return pb.ResumeResponse()

    async def DumpState(self, request: pb.DumpStateRequest, context: Context) -> pb.DumpStateResponse:
        core = self._loop.core
        live = core.live() if core is not None else []
        limit, now = min(request.limit or DEFAULT_DUMP, MAX_DUMP), time.monotonic()
        states = [admin_messages.request_state(sequence, now) for sequence in live[:limit]]
        return pb.DumpStateResponse(requests=states, total=len(live))

    async def WatchEvents(
        self, request: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.WatchEventsResponse]:
        with self._events.watch() as queue:
            await context.send_initial_metadata(())  # tells the caller that nothing is missed from now on
            while True:
                yield admin_messages.event(await queue.get())

    async def _set_draining(self, draining: bool) -> None:
        if self._loop.draining != draining:
            self._loop.refuse(draining)
            self._events.publish(DrainingChanged(draining))
            await self._on_draining()
