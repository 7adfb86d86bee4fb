"""Where others connect to the scheduler, and where it connects to: each guarded as the settings say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from common import address
from common.errors import CitybusError, StartupError
from common.grpc_server import GrpcServer
from common.metrics import SchedulerMetrics
from common.model_identity import read_identity
from common.secret_file import read_secret
from common.tls import channel_credentials, server_credentials
from scheduler_svc.admin_token import admin_doorkeeper, read_token
from scheduler_svc.api_keys import ApiKeys, parse_keys
from scheduler_svc.config import Config
from scheduler_svc.executor_client import ExecutorClient
from scheduler_svc.key_interceptor import KeyInterceptor
from scheduler_svc.limits_file import LimitTable, parse_limits
from scheduler_svc.quotas import Limits
from scheduler_svc.watched_file import WatchedFile

ADMIN_MESSAGE_BYTES = 2**20

T = TypeVar("T")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator's files say of clients; None where there is no such file."""

    keys: WatchedFile[ApiKeys] | None
    limits: WatchedFile[LimitTable] | None

    def limits_of(self, tenant: str) -> Limits:
        """The limits of `tenant`, as they are now."""
        return Limits() if self.limits is None else self.limits.value().of(tenant)


def read_rules(settings: Config) -> Rules:
    """What the files say. Raises `StartupError`."""
    return Rules(
        _watched("--keys-file", settings.keys_file, parse_keys),
        _watched("--limits-file", settings.limits_file, parse_limits),
    )


def _watched(flag: str, path: Path | None, parse: Callable[[str], T]) -> WatchedFile[T] | None:
    try:
        return None if path is None else WatchedFile(path, parse)
    except StartupError as error:
        raise StartupError(f"{flag}: {error}") from error


def check_doors(settings: Config, environ: Mapping[str, str]) -> None:
    """Whether they could be opened: a standby must not find out when the one before it has gone. Raises
    `StartupError`.
    """
    address.check_guarded(
        settings.listen,
        guarded=settings.keys_file is not None or settings.tls_client_ca is not None,
        insecure_bind=settings.insecure_bind,
        how="make keys with 'citybus keys new' and set --keys-file",
    )
    if settings.keys_file is not None and settings.tls_cert is None and not address.is_loopback(settings.listen):
        log.warning("API keys travel unencrypted: set --tls-cert and --tls-key", listen=settings.listen)
    read_rules(settings)
    server_credentials(settings.tls)
    read_token(settings.admin_token_file, environ)


def check_addresses(settings: Config) -> None:
    """Whether nobody listens where it would. Raises `StartupError`."""
    for flag, listen in (
        ("--listen", settings.listen),
        ("--admin-listen", settings.admin_listen),
        ("--metrics-listen", settings.metrics_listen),
    ):
        if listen:
            address.check_free(listen, flag)


def executor_client(settings: Config) -> ExecutorClient:
    """The way to the executor. Raises `StartupError`."""
    path = settings.executor_token_file
    token = None if path is None else read_secret(path, "the executor's token")
    return ExecutorClient(
        settings.executor,
        model=read_identity(settings.model),
        token=token,
        credentials=channel_credentials(settings.executor_tls),
    )


def client_server(settings: Config, rules: Rules, metrics: SchedulerMetrics, max_request_bytes: int) -> GrpcServer:
    """The door of clients."""
    return GrpcServer(
        settings.listen,
        services=["citybus.v1.GenerationService"],
        max_message_bytes=max_request_bytes,
        max_calls=settings.max_calls,
        interceptors=[] if rules.keys is None else [KeyInterceptor(rules.keys.value, _counted(metrics))],
        credentials=server_credentials(settings.tls),
    )


def admin_server(settings: Config, environ: Mapping[str, str]) -> GrpcServer:
    """The door of operators. Without a token, only this machine may operate the scheduler."""
    token = read_token(settings.admin_token_file, environ)
    open_to_all = token is None and address.is_loopback(settings.admin_listen)
    return GrpcServer(
        settings.admin_listen,
        flag="--admin-listen",
        services=["citybus.admin.v1.AdminService"],
        max_message_bytes=ADMIN_MESSAGE_BYTES,
        interceptors=[] if open_to_all else [admin_doorkeeper(token)],
        credentials=server_credentials(settings.tls),
    )


def _counted(metrics: SchedulerMetrics) -> Callable[[CitybusError], None]:
    return lambda error: metrics.request_failures.labels(code=error.code.name).inc()
