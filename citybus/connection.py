"""How both clients connect: channel options, and the standard health check."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from citybus.errors import Unavailable

DEFAULT_ADDRESS = "127.0.0.1:50051"
REQUEST_ID_KEY = "citybus-request-id"
"""Initial metadata in which the server returns the id of an accepted request."""

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
HEALTH_REQUEST = b""
"""A serialized HealthCheckRequest for the whole server; by hand, as these two messages are the whole protocol."""
SERVING = b"\x08\x01"
"""A serialized HealthCheckResponse whose status is SERVING."""
HEALTH_INTERVAL_S = 0.05
"""Seconds between two health checks of a server that is starting."""

MIN_INTERVAL_S = 5.0
"""Least seconds between two keepalive pings."""

MAX_MESSAGE_BYTES = 64 << 20


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


def not_ready(address: str, timeout: float) -> Unavailable:
    """The error of `wait_ready` after `timeout` seconds."""
    return Unavailable(f"no server was ready at {address} within {timeout:g} s", grpc.StatusCode.UNAVAILABLE)
