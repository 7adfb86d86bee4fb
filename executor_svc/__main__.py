"""`python -m executor_svc`: the one place that names concrete classes."""

from __future__ import annotations

import asyncio
import os
import sys

import grpc
import structlog
from prometheus_client import CollectorRegistry

from citybus.executor.v1 import executor_pb2_grpc
from common import address, config, log
from common.doorkeeper import TokenInterceptor
from common.errors import StartupError
from common.grpc_server import GrpcServer
from common.metrics import ExecutorMetrics, serve_metrics
from common.secret_file import read_or_make_secret
from common.step_executor import StepExecutor
from common.tls import server_credentials
from executor_svc.config import Config
from executor_svc.own_kernels import check_own_kernels
from executor_svc.server import ExecutorServicer

SERVICE = "citybus.executor.v1.ExecutorService"
UNLIMITED_BYTES = -1
REFUSAL = (
    "the executor takes plans from its scheduler only: the token is missing or wrong; give the scheduler"
    " --executor-token-file with the file that is the executor's --token-file"
)


async def serve(settings: Config, engine: StepExecutor, registry: CollectorRegistry, metrics: ExecutorMetrics) -> None:
    """Run until a signal has drained the service. Raises `StartupError`."""
    servicer = ExecutorServicer(engine, metrics)
    server = GrpcServer(
        settings.listen,
        services=[SERVICE],
        max_message_bytes=UNLIMITED_BYTES,
        interceptors=_doorkeeper(settings),
        credentials=server_credentials(settings.tls),
    )
    executor_pb2_grpc.add_ExecutorServiceServicer_to_server(servicer, server.server)
    metrics_server = serve_metrics(registry, settings.metrics_listen)
    try:
        port = await server.start()
        await server.set_serving(True)
        structlog.get_logger().info(
            "serving", listen=address.with_port(settings.listen, port), metrics_port=metrics_server.port
        )
        await server.run_until_signal(servicer.drain, settings.drain_grace)
    finally:
        servicer.close()
        metrics_server.close()


def _doorkeeper(settings: Config) -> list[grpc.aio.ServerInterceptor]:
    """Who asks for the token, where there is one. Health and reflection are open. Raises `StartupError`."""
    if settings.token_file is None:
        return []
    token = read_or_make_secret(settings.token_file, "the scheduler's token")
    return [TokenInterceptor(token, f"/{SERVICE}/", REFUSAL)]


def check_settings(settings: Config) -> None:
    """What can be said before the model is loaded. Raises `StartupError`."""
    guarded = settings.token_file is not None or settings.tls_client_ca is not None
    address.check_guarded(
        settings.listen,
        guarded=guarded,
        insecure_bind=settings.insecure_bind,
        how="set --token-file, and --executor-token-file of the scheduler",
    )
    address.check_free(settings.listen, "--listen")
    if settings.metrics_listen:
        address.check_free(settings.metrics_listen, "--metrics-listen")
    server_credentials(settings.tls)
    _doorkeeper(settings)


def main() -> int:
    """The process. Returns its exit status."""
    try:
        settings = config.load(
            Config, sys.argv[1:], os.environ, prog="python -m executor_svc", env_prefix="CITYBUS_EXECUTOR"
        )
        log.configure("executor", settings.log_level)
        check_settings(settings)
        check_own_kernels()
        if settings.check:
            return 0
        os.environ.setdefault("GOMP_SPINCOUNT", "0")
        from executor_svc.startup import load_engine  # only now: it imports kernels, and torch reads the line above

        registry = CollectorRegistry()
        metrics = ExecutorMetrics(registry)
        asyncio.run(serve(settings, load_engine(settings, metrics), registry, metrics))
    except StartupError as error:
        print(f"executor: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
