"""A real gRPC server whose answers are scripted: what the client library and the command line talk to in tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from citybus.admin.v1 import admin_pb2, admin_pb2_grpc
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc as pb_grpc
from common.tls import TlsFiles, server_credentials

FRANCE = "What is the capital of France?"
ANSWER = ("The capital", " of France is", " Paris.")
REFUSED = "max_tokens: expected 1 or more"
FULL = "too many tokens wait"


@dataclass
class ScriptedServer(pb_grpc.GenerationServiceServicer, admin_pb2_grpc.AdminServiceServicer):
    """Answers every request, and every sample, with `ANSWER`, two tokens a message; "forever" never ends.

    "refuse" and "full" are refused; "drain" is refused with a time after which to try again; "gone" is cancelled;
    "noisy" answers with control characters; "long" ends by its length. `requests` are those received; `cancelled`
    counts the calls that were closed early; `authorizations` has the method of each call and what it brought under that
    name.
    """

    chat: bool = True
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    authorizations: list[tuple[str, str | None]] = field(default_factory=list)
    cancelled: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    readings: int = 0

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        prompt = request.text or (request.chat.messages[-1].content if request.HasField("chat") else "")
        if prompt == "refuse":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, REFUSED)
        if prompt == "full":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, FULL)
        if prompt == "drain":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "draining", (("grpc-retry-pushback-ms", "1500"),))
        if prompt == "gone":
            await context.abort(grpc.StatusCode.CANCELLED, "CANCELLED")
        await context.send_initial_metadata((("citybus-request-id", request.request_id or "made-1"),))
        try:
            texts = ("\x1b[2Jred\x07",) if prompt == "noisy" else ANSWER
            for sample in range(max(1, request.samples.n)):
                for index, text in enumerate(texts):
                    ids = [2 * index, 2 * index + 1]
                    yield pb.GenerateResponse(first_index=2 * index, token_ids=ids, text=text, sample=sample)
                if prompt == "forever":
                    await asyncio.sleep(3600)
                end = _finish(2 * len(texts), pb.FINISH_REASON_LENGTH if prompt == "long" else pb.FINISH_REASON_STOP)
                yield pb.GenerateResponse(first_index=2 * len(texts), finish=end, sample=sample)
        finally:
            if prompt == "forever":
                self.cancelled.release()

    async def ListModels(self, request: pb.ListModelsRequest, context: object) -> pb.ListModelsResponse:
        model = pb.Model(name="tiny", max_model_len=512, vocab_size=272, has_chat_template=self.chat)
        return pb.ListModelsResponse(models=[model])

    async def CountTokens(
        self, request: pb.CountTokensRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.CountTokensResponse:
        if request.model == "absent":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no model 'absent': this server has 'tiny'")
        text = request.text or "".join(message.content for message in request.chat.messages)
        return pb.CountTokensResponse(num_tokens=len(text.split()))

    async def GetStatus(self, request: admin_pb2.GetStatusRequest, context: object) -> admin_pb2.GetStatusResponse:
        self.readings += 1
        return admin_pb2.GetStatusResponse(
            version="0.1.0",
            model="tiny",
            policy="fcfs",
            executor_connected=True,
            uptime_ms=1000 * self.readings,
            running=3,
            max_running=64,
            waiting=5,
            pool=admin_pb2.PoolStatus(block_size=16, free=70, cached=10, held=20, tokens_held=312),
            totals=admin_pb2.Totals(
                accepted=9, finished=1, prompt_tokens=400, cached_tokens=100, generated_tokens=50 * self.readings
            ),
        )


def _finish(completion_tokens: int, reason: pb.FinishReason) -> pb.Finish:
    return pb.Finish(
        reason=reason,
        stop_token_id=2,
        usage=pb.Usage(prompt_tokens=7, completion_tokens=completion_tokens, cached_tokens=4),
        timings=pb.Timings(queued_ms=1.5, first_token_ms=2.5, total_ms=9.0),
    )


class _Recorder(grpc.aio.ServerInterceptor):
    def __init__(self, seen: list[tuple[str, str | None]]) -> None:
        self._seen = seen

    async def intercept_service(self, continuation: Any, call: grpc.HandlerCallDetails) -> Any:
        self._seen.append((call.method, dict(call.invocation_metadata or ()).get("authorization")))
        return await continuation(call)


@contextmanager
def serving(
    server: ScriptedServer, *, healthy_after_s: float = 0.0, tls: tuple[Path, Path, Path | None] | None = None
) -> Iterator[str]:
    """Run `server` in a thread on a free port; gives its address. It says that it is healthy after a while.

    `tls`: its certificate, the key of that, and the CA of clients where they have to have one.
    """
    started: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = []
    ready = threading.Event()

    async def run() -> None:
        grpc_server = grpc.aio.server(
            options=[("grpc.http2.min_ping_interval_without_data_ms", 2_500)],
            interceptors=[_Recorder(server.authorizations)],
        )
        pb_grpc.add_GenerationServiceServicer_to_server(server, grpc_server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(server, grpc_server)
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, grpc_server)
        await checks.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        credentials = server_credentials(TlsFiles(*(tls or (None, None, None))))
        if credentials is None:
            port = grpc_server.add_insecure_port("127.0.0.1:0")
        else:
            port = grpc_server.add_secure_port("127.0.0.1:0", credentials)
        await grpc_server.start()
        stop = asyncio.Event()
        started.append((f"127.0.0.1:{port}", asyncio.get_running_loop(), stop))
        ready.set()
        await asyncio.sleep(healthy_after_s)
        await checks.set("", health_pb2.HealthCheckResponse.SERVING)
        await stop.wait()
        await grpc_server.stop(0)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    ready.wait()
    address, loop, stop = started[0]
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
