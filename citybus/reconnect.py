"""How a client comes back to an answer whose stream broke."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import grpc

from citybus.v1 import generation_pb2 as pb

FINAL_KEY = "citybus-final"
"""Trailing metadata that says that a request has ended with this error, and there is nothing to attach to."""

BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a stream ends whose server goes: it is not there any more, or cancels the last calls that reach it."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Reconnect:
    """An accepted request whose stream breaks is attached to again, for at most `timeout_s` seconds a break.

    `grace_s` is how long the server lets the request go on meanwhile, where it is the connection that broke.
    """

    timeout_s: float = 60.0
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or not 0 < self.grace_s <= 3600:
            raise ValueError("reconnect: timeout_s must be more than 0, grace_s more than 0 and at most 3600 seconds")

    def prepare(self, request: pb.GenerateRequest) -> pb.GenerateRequest:
        """The request with what it takes to come back to it: an id of its own, and a grace."""
        if not request.HasField("request_id"):
            request.request_id = uuid.uuid4().hex
        if not request.HasField("reconnect_grace_ms"):
            request.reconnect_grace_ms = round(self.grace_s * 1000)
        return request


DEFAULT_RECONNECT = Reconnect()


def may_attach(failure: grpc.RpcError) -> bool:
    """Whether the request may still be alive behind a stream that failed so, and not by us."""
    trailing = cast("Iterable[tuple[str, str | bytes]]", failure.trailing_metadata() or ())
    return failure.code() in BROKEN and FINAL_KEY not in dict(trailing)


def pauses() -> Iterator[float]:
    """Seconds to wait before each attempt."""
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE_S)
