"""Citybus: the client library and the command line of an LLM server in two processes.

    from citybus import Client

    with Client() as client, client.generate("Once upon a time", max_tokens=40) as stream:
        for delta in stream:
            print(delta.text, end="", flush=True)

`AsyncClient` is the same for asyncio. Names are imported when they are first used, because the services import this
package too, for the generated protocol beside it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from citybus.async_client import AsyncClient
    from citybus.async_stream import AsyncStream
    from citybus.client import Client
    from citybus.connection import Keepalive
    from citybus.errors import (
        AlreadyExists,
        Cancelled,
        CitybusError,
        Disconnected,
        Exhausted,
        Insecure,
        InvalidRequest,
        NotFound,
        PermissionDenied,
        Timeout,
        Unauthenticated,
        Unavailable,
        Unreachable,
    )
    from citybus.messages import Completion, Delta, Finish, FinishReason, Model, Timings, Usage
    from citybus.reconnect import Reconnect
    from citybus.requests import ChatMessage, RequestOptions
    from citybus.tls import Tls

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "AsyncStream",
    "Cancelled",
    "ChatMessage",
    "CitybusError",
    "Client",
    "Completion",
    "Delta",
    "Disconnected",
    "Exhausted",
    "Finish",
    "FinishReason",
    "Insecure",
    "InvalidRequest",
    "Keepalive",
    "Model",
    "NotFound",
    "PermissionDenied",
    "Prompt",
    "Reconnect",
    "RequestOptions",
    "Stream",
    "Timeout",
    "Timings",
    "Tls",
    "TokenLogprobs",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "Usage",
]

_HOMES = {
    "async_client": ("AsyncClient",),
    "async_stream": ("AsyncStream",),
    "client": ("Client",),
    "connection": ("Keepalive",),
    "reconnect": ("Reconnect",),
    "requests": ("ChatMessage", "RequestOptions"),
    "stream": ("Stream",),
    "tls": ("Tls",),
    "errors": (
        "AlreadyExists",
        "Cancelled",
        "CitybusError",
        "Disconnected",
        "Exhausted",
        "Insecure",
        "InvalidRequest",
        "NotFound",
        "PermissionDenied",
        "Timeout",
        "Unauthenticated",
        "Unavailable",
        "Unreachable",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'citybus' has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "messages")
    return getattr(importlib.import_module(f"citybus.{home}"), name)
