"""What one client, or all together, can take of a gRPC server: connections, calls, silence, pings."""

from __future__ import annotations

import resource

MIN_PING_INTERVAL_MS = 2_500
"""Half of the 5 s at which a client of ours pings, so that jitter never makes a ping one too many."""

MAX_CALLS = 8_192
"""Most calls open at once; more get RESOURCE_EXHAUSTED. A connection may hold half of them."""

MAX_CONNECTIONS = 4_096
"""Most connections at once; more are closed as they come."""

IDLE_CONNECTION_MS = 300_000
"""How long a connection without a call is kept. A client of gRPC connects again by itself."""

SILENT_CONNECTION_MS = 20_000
"""How long a connection may take to say its first words, TLS and HTTP/2."""


def server_options(max_message_bytes: int, max_calls: int, max_connections: int) -> list[tuple[str, int]]:
    """gRPC's options for a server with these limits; half of the process's files are left for other things.

    What the server itself sends is bounded by what it accepts.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most_connections = min(max_connections, files // 2) if files != resource.RLIM_INFINITY else max_connections
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", max(1, max_calls // 2)),
        ("grpc.max_allowed_incoming_connections", most_connections),
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MS),
        ("grpc.server_handshake_timeout_ms", SILENT_CONNECTION_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),  # what counts: the one above alone leaves it at a minute
    ]
