"""An executor that computes nothing, to measure everything else.

As a process: `python -m bench.synthetic ADDRESS STEP_MS SEATS`, and `gathers` behind it for one that does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

from prometheus_client import CollectorRegistry

from bench.simulation import INFO
from citybus.executor.v1 import executor_pb2_grpc
from common import log
from common.grpc_server import GrpcServer
from common.metrics import ExecutorMetrics
from common.resident import ResidentPage
from common.step import ExecutorInfo, SampledToken, StepPlan, StepResult
from executor_svc.server import ExecutorServicer
from scheduler_svc.policy_trial import CountingExecutor

SERVICE = "citybus.executor.v1.ExecutorService"
GATHERING_S = 0.25
FIRST_WORD, NUM_WORDS = 1_000, 4_096
"""Token ids that are words to every tokenizer we measure with."""


class SyntheticExecutor:
    """`common.step_executor.StepExecutor` whose steps take `step_s` seconds, and no CPU time but for the counting.

    With `gathers`, they take `GATHERING_S` until every seat was taken once: who comes first waits for the others.
    """

    def __init__(self, step_s: float = 0.0, max_sequences: int = 256, *, gathers: bool = False) -> None:
        self._info = replace(
            INFO, epoch=os.urandom(16), vocab_size=2**20, num_blocks=65_536, max_sequences=max_sequences,
            max_step_tokens=32 * max_sequences,
        )  # fmt: skip
        self._step_s = step_s
        self._gathers = gathers
        self._term = 0
        self._counting = CountingExecutor()
        self._ended = time.perf_counter()

    def describe(self) -> ExecutorInfo:
        return self._info

    def open(self, epoch: bytes, resume: bool) -> int:
        self._term += 1
        self._counting = CountingExecutor()
        return self._term

    def step(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        drawn = self._counting.step(plan).sampled
        self._gathers = self._gathers and len(drawn) < self._info.max_sequences
        due = started + (GATHERING_S if self._gathers else self._step_s)
        sampled = tuple(
            SampledToken(each.sequence_id, FIRST_WORD + (plan.step + each.sequence_id) % NUM_WORDS) for each in drawn
        )
        time.sleep(max(0.0, due - time.perf_counter()))
        idle_s, self._ended = started - self._ended, time.perf_counter()
        return StepResult(plan.step, sampled, int(1e9 * (self._ended - started)), int(1e9 * idle_s))

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        yield ResidentPage(self._info.epoch, 0)


@asynccontextmanager
async def served(executor: SyntheticExecutor, listen: str) -> AsyncIterator[GrpcServer]:
    """Serve it at an address."""
    servicer = ExecutorServicer(executor, ExecutorMetrics(CollectorRegistry()))
    server = GrpcServer(listen, services=[SERVICE], max_message_bytes=-1)
    executor_pb2_grpc.add_ExecutorServiceServicer_to_server(servicer, server.server)
    await server.start()
    try:
        yield server
    finally:
        await server.server.stop(0)
        servicer.close()


async def _serve(listen: str, executor: SyntheticExecutor) -> None:
    async with served(executor, listen) as server:
        await server.server.wait_for_termination()


if __name__ == "__main__":
    log.configure("bench", "warning")
    address, step_ms, seats, *gathers = sys.argv[1:]
    made = SyntheticExecutor(float(step_ms) / 1000, int(seats), gathers=gathers == ["gathers"])
    asyncio.run(_serve(address, made))
