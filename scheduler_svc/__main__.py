"""`python -m scheduler_svc`: the one place that names concrete classes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry

from citybus.admin.v1 import admin_pb2_grpc
from citybus.v1 import generation_pb2_grpc
from common import address, config, log
from common.errors import StartupError
from common.grpc_server import GrpcServer
from common.metrics import SchedulerMetrics, serve_metrics
from common.step import StepPlan
from scheduler_svc.admin import AdminServicer
from scheduler_svc.chat_template import ChatTemplate
from scheduler_svc.config import Config
from scheduler_svc.executor_client import ExecutorClient, Fenced
from scheduler_svc.frontend import GenerationServicer
from scheduler_svc.loop import SchedulerLoop
from scheduler_svc.model_files import read_model_files
from scheduler_svc.plan_log import PlanLog
from scheduler_svc.policies import BUILT_IN
from scheduler_svc.prompts import PromptEncoder
from scheduler_svc.tokenizer import Tokenizer

ADMIN_MESSAGE_BYTES = 2**20


async def serve(settings: Config) -> None:
    """Run until a signal has drained the service. Raises `StartupError`, and `Fenced` where it was replaced."""
    files = read_model_files(settings.model)
    template = ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template else None
    encoder = PromptEncoder(Tokenizer(files), template)
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)
    metrics.set_policy(settings.policy)
    server = GrpcServer(
        settings.listen, services=["citybus.v1.GenerationService"], max_message_bytes=settings.max_request_bytes
    )
    admin = GrpcServer(
        settings.admin_listen, services=["citybus.admin.v1.AdminService"], max_message_bytes=ADMIN_MESSAGE_BYTES
    )
    with contextlib.ExitStack() as stack:
        loop = SchedulerLoop(
            ExecutorClient(settings.executor),
            BUILT_IN[settings.policy](),
            settings,
            metrics,
            on_serving=server.set_serving,
            on_plan=_plan_recorder(settings, stack),
        )
        generation = GenerationServicer(
            loop,
            encoder,
            files.eos_token_ids,
            metrics,
            max_live_requests=settings.max_queued_requests,
            max_time_s=settings.time_limit,
        )
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server.server)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(loop), admin.server)
        metrics_server = serve_metrics(registry, settings.metrics_listen)
        stack.callback(metrics_server.close)
        stack.callback(encoder.close)
        port, admin_port = await server.start(), await admin.start()
        await admin.set_serving(True)
        structlog.get_logger().info(
            "serving",
            listen=address.with_port(settings.listen, port),
            admin_listen=address.with_port(settings.admin_listen, admin_port),
            metrics_port=metrics_server.port,
            policy=settings.policy,
        )
        try:
            await _until_signal(server, loop, settings.drain_grace)
        finally:
            await admin.server.stop(0)


def _plan_recorder(settings: Config, stack: contextlib.ExitStack) -> Callable[[StepPlan], None]:
    if settings.plan_log is None:
        return lambda plan: None
    plan_log = PlanLog(settings.plan_log)
    stack.callback(plan_log.close)
    return plan_log.write


async def _until_signal(server: GrpcServer, loop: SchedulerLoop, grace_s: float) -> None:
    """Drive the loop until a signal ends the service, or the loop ends by itself: then its error is raised."""
    driving = asyncio.create_task(loop.run())
    waiting = asyncio.create_task(server.run_until_signal(loop.drain, grace_s))
    await asyncio.wait((driving, waiting), return_when=asyncio.FIRST_COMPLETED)
    if driving.done() and not waiting.done():
        await server.server.stop(1.0)
    for task in (driving, waiting):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    with contextlib.suppress(asyncio.CancelledError):
        await driving


def main() -> int:
    """The process. Returns its exit status."""
    try:
        settings = config.load(
            Config, sys.argv[1:], os.environ, prog="python -m scheduler_svc", env_prefix="CITYBUS_SCHEDULER"
        )
        log.configure("scheduler", settings.log_level)
        asyncio.run(serve(settings))
    except StartupError as error:
        print(f"scheduler: {error}", file=sys.stderr)
        return 2
    except Fenced:
        print("scheduler: another scheduler has taken the executor over; this one ends", file=sys.stderr)
        return 3
    except KeyboardInterrupt:  # before the signals are handled: while it still starts
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
