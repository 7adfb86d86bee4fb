"""A server of its own for each test, a client of it, and an executor whose steps wait for the test."""

from __future__ import annotations

import threading
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from citybus.executor.v1 import executor_pb2 as pb
from citybus.executor.v1 import executor_pb2_grpc
from common import wire
from common.grpc_server import GrpcServer
from common.metrics import ExecutorMetrics
from common.resident import ResidentPage
from common.step import StepPlan, StepResult
from common.step_executor import StepExecutor
from executor_svc.server import ExecutorServicer
from tests.fakes import FakeExecutor

SERVICE = "citybus.executor.v1.ExecutorService"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
TIMEOUT_S = 30.0


class GatedExecutor(FakeExecutor):
    """A fake whose steps wait until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.started: list[int] = []
        self.threads: set[int] = set()

    def step(self, plan: StepPlan) -> StepResult:
        self.threads.add(threading.get_ident())
        self.started.append(plan.step)
        assert self.gate.acquire(timeout=TIMEOUT_S)
        return super().step(plan)

    def open(self, epoch: bytes, resume: bool) -> int:
        self.threads.add(threading.get_ident())
        return super().open(epoch, resume)


class Client:
    """One channel to a server of its own."""

    def __init__(self, executor: StepExecutor) -> None:
        self.executor = executor
        self.registry = CollectorRegistry()
        self.servicer = ExecutorServicer(executor, ExecutorMetrics(self.registry))

    async def start(self) -> None:
        self.server = GrpcServer("127.0.0.1:0", services=[SERVICE], max_message_bytes=-1)
        executor_pb2_grpc.add_ExecutorServiceServicer_to_server(self.servicer, self.server.server)
        self.address = f"127.0.0.1:{await self.server.start()}"
        await self.server.set_serving(True)
        self.channel = grpc.aio.insecure_channel(self.address, options=UNLIMITED)
        self.stub = executor_pb2_grpc.ExecutorServiceStub(self.channel)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.server.stop(0)
        self.servicer.close()

    def call(self) -> Any:
        return self.stub.Execute(timeout=TIMEOUT_S)

    async def session(self, *, resume: bool = False, scheduler_id: bytes = b"") -> ClientSession:
        call = self.call()
        opening = pb.OpenSession(epoch=self.executor.describe().epoch, resume=resume, scheduler_id=scheduler_id)
        await call.write(pb.ExecuteRequest(open=opening))
        return ClientSession(call, (await call.read()).opened.term)

    async def pages(self, **options: int) -> list[ResidentPage]:
        call = self.stub.Reconcile(pb.ReconcileRequest(**options), timeout=TIMEOUT_S)
        return [wire.page_from_pb(page) async for page in call]

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"citybus:{name}", labels) or 0.0


class ClientSession:
    def __init__(self, call: Any, term: int) -> None:
        self.call = call
        self.term = term
        self.last_step = 0

    async def send(self, **parts: Any) -> None:
        self.last_step += 1
        plan = StepPlan(self.term, self.last_step, **parts)
        await self.call.write(pb.ExecuteRequest(plan=wire.plan_to_pb(plan)))

    async def result(self) -> StepResult:
        response = await self.call.read()
        assert isinstance(response, pb.ExecuteResponse), f"the session ended with {await self.call.code()}"
        return wire.result_from_pb(response.result)

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        """How the server ended the session; what it answered before is read and dropped."""
        try:
            while await self.call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await self.call.code(), await self.call.details()
