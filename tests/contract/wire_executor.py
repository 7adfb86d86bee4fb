"""A step executor behind a real gRPC server, with the interface of one that is not."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import grpc
from prometheus_client import CollectorRegistry

from citybus.executor.v1 import executor_pb2 as pb
from citybus.executor.v1 import executor_pb2_grpc
from common import wire
from common.grpc_server import GrpcServer
from common.metrics import ExecutorMetrics
from common.resident import ResidentPage
from common.step import ExecutorInfo, InvalidPlan, StaleTerm, StepPlan, StepResult
from common.step_executor import StepExecutor
from executor_svc.server import ExecutorServicer

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Served:
    """Serves `executor` from a thread of its own while entered; `target` is where."""

    def __init__(self, executor: StepExecutor) -> None:
        self._executor = executor
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self.target = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30), "the server did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        services = ["citybus.executor.v1.ExecutorService"]
        server = GrpcServer("127.0.0.1:0", services=services, max_message_bytes=-1)
        servicer = ExecutorServicer(self._executor, ExecutorMetrics(CollectorRegistry()))
        executor_pb2_grpc.add_ExecutorServiceServicer_to_server(servicer, server.server)
        self.target = f"127.0.0.1:{await server.start()}"
        self._ready.set()
        await self._stop.wait()
        await server.server.stop(0)
        servicer.close()


class WireExecutor:
    """A `StepExecutor` over a channel: a status of the server becomes the exception it stands for."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, options=UNLIMITED)
        self._stub = executor_pb2_grpc.ExecutorServiceStub(self._channel)
        self._requests: queue.SimpleQueue[pb.ExecuteRequest | None] = queue.SimpleQueue()
        self._responses: Iterator[pb.ExecuteResponse] = iter(())

    def describe(self) -> ExecutorInfo:
        return wire.info_from_pb(self._stub.Describe(pb.DescribeRequest(), timeout=30))

    def open(self, epoch: bytes, resume: bool) -> int:
        self._requests = queue.SimpleQueue()
        self._responses = self._stub.Execute(iter(self._requests.get, None), timeout=120)
        self._requests.put(pb.ExecuteRequest(open=pb.OpenSession(epoch=epoch, resume=resume)))
        return self._next().opened.term

    def step(self, plan: StepPlan) -> StepResult:
        self.send(plan)
        return self.receive()

    def send(self, plan: StepPlan) -> None:
        """Put a plan in flight."""
        self._requests.put(pb.ExecuteRequest(plan=wire.plan_to_pb(plan)))

    def receive(self) -> StepResult:
        """The result of the oldest plan in flight."""
        return wire.result_from_pb(self._next().result)

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        for page in self._stub.Reconcile(pb.ReconcileRequest(page_size=page_size), timeout=30):
            yield wire.page_from_pb(page)

    def close(self) -> None:
        """End the session and give the connection up."""
        self._requests.put(None)
        self._channel.close()

    def _next(self) -> pb.ExecuteResponse:
        try:
            return next(self._responses)
        except grpc.RpcError as error:
            match error.code():
                case grpc.StatusCode.FAILED_PRECONDITION:
                    raise StaleTerm(error.details()) from error
                case grpc.StatusCode.INVALID_ARGUMENT:
                    raise InvalidPlan(error.details()) from error
                case _:
                    raise
