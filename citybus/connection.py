"""How clients connect: channels, the API key, and the standard health check."""

from __future__ import annotations

import os
from dataclasses import dataclass

import grpc

from citybus.errors import Unavailable, from_rpc
from citybus.tls import Tls

DEFAULT_ADDRESS = "127.0.0.1:50051"
API_KEY_VARIABLE = "CITYBUS_API_KEY"
"""Environment variable with the API key, where none is given. Never a flag: those show in the process list."""
ADMIN_TOKEN_VARIABLE = "CITYBUS_ADMIN_TOKEN"  # its name, not its value
"""The same for the token of operators."""
REQUEST_ID_KEY = "citybus-request-id"
"""Initial metadata in which the server returns the id of an accepted request."""

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_REQUEST = b""
"""A serialized HealthCheckRequest for the whole server; by hand, as these two messages are the whole protocol."""
SERVING = b"\x08\x01"
"""A serialized HealthCheckResponse whose status is SERVING."""
NOT_SERVING = "one answers that it is not serving: it starts or drains, or, a scheduler, has no executor"
NO_ANSWER = "nothing answered"
HEALTH_INTERVAL_S = 0.05
"""Seconds between two health checks of a server that is starting."""

MIN_INTERVAL_S = 5.0
"""Least seconds between two keepalive pings."""

MAX_MESSAGE_BYTES = 64 << 20


Metadata = tuple[tuple[str, str], ...]
"""Of a call."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """How a dead connection is noticed: a ping every `interval_s` seconds of silence, answered within `timeout_s`.

    The server cuts connections that ping much more often than every `MIN_INTERVAL_S` seconds.
    """

    interval_s: float = 10.0
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.interval_s < MIN_INTERVAL_S or self.timeout_s <= 0:
            raise ValueError(
                f"keepalive: interval_s must be at least {MIN_INTERVAL_S:g}, timeout_s more than 0 seconds"
            )


DEFAULT_KEEPALIVE = Keepalive()


def channel_options(keepalive: Keepalive | None) -> list[tuple[str, int]]:
    """Options of a channel; without `keepalive`, a connection that died silently is only noticed by TCP."""
    options = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_http_proxy", 0),  # a proxy meant for the web would also be asked for 127.0.0.1
    ]
    if keepalive is not None:
        options += [
            ("grpc.keepalive_time_ms", round(keepalive.interval_s * 1000)),
            ("grpc.keepalive_timeout_ms", round(keepalive.timeout_s * 1000)),
            ("grpc.http2.max_pings_without_data", 0),  # a request that waits in the queue has no data for long
            ("grpc.http2.ping_timeout_ms", round(keepalive.timeout_s * 1000)),  # the one above alone leaves a minute
        ]
    return options


def open_channel(address: str, keepalive: Keepalive | None = None, tls: Tls | None = None) -> grpc.Channel:
    """A channel to `address` ("host:port"), encrypted if `tls` is given. Raises `ValueError` for files of no use."""
    options = channel_options(keepalive)
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, tls.credentials(), options=options)


def open_aio_channel(address: str, keepalive: Keepalive | None = None, tls: Tls | None = None) -> grpc.aio.Channel:
    """The same for asyncio."""
    options = channel_options(keepalive)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.credentials(), options=options)


def authorization(api_key: str | None) -> Metadata:
    """What a call brings to show who makes it; None: the key of the environment, or nothing.

    Raises `ValueError`, which does not quote it, for a key that no metadata can hold.
    """
    key = os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"api_key (or {API_KEY_VARIABLE}) must be one line of ASCII")
    return (("authorization", f"Bearer {key}"),) if key else ()


def why_unready(failure: grpc.RpcError, address: str, before: str) -> str:
    """Why a health check failed; where only its time was up, that is what was found `before`."""
    return before if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED else str(from_rpc(failure, address))


def not_ready(address: str, timeout: float, why: str) -> Unavailable:
    """The error of `wait_ready` after `timeout` seconds."""
    return Unavailable(f"no server was ready at {address} within {timeout:g} s: {why}", grpc.StatusCode.UNAVAILABLE)
