"""The operator's service."""

from __future__ import annotations

import time
from importlib.metadata import version

import grpc

from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc
from scheduler_svc.loop import SchedulerLoop


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Answers from the loop's own state."""

    def __init__(self, loop: SchedulerLoop) -> None:
        self._loop = loop
        self._started = time.monotonic()

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext[pb.GetStatusRequest, pb.GetStatusResponse]
    ) -> pb.GetStatusResponse:
        info = self._loop.info()
        response = pb.GetStatusResponse(
            version=version("citybus"),
            model=info.model if info else "",
            policy=self._loop.policy,
            executor_connected=info is not None,
            draining=self._loop.draining,
            uptime_ms=int((time.monotonic() - self._started) * 1000),
            max_running=info.max_sequences if info else 0,
        )
        reading = self._loop.snapshot()
        if reading is None:
            return response
        state, totals = reading
        response.running, response.waiting = state.running, state.waiting
        response.pool.CopyFrom(
            pb.PoolStatus(
                block_size=info.block_size if info else 0,
                free=state.pool.free,
                cached=state.pool.cached,
                held=state.pool.held,
                tokens_held=state.tokens_held,
            )
        )
        response.totals.CopyFrom(
            pb.Totals(
                accepted=totals.accepted,
                finished=totals.finished,
                steps=totals.steps,
                prompt_tokens=totals.prompt_tokens,
                cached_tokens=totals.cached_tokens,
                generated_tokens=totals.generated_tokens,
                preemptions=totals.preemptions,
            )
        )
        return response
