"""What a call of the client library can fail with: one class a gRPC status that callers tell apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import grpc

from citybus.tls import explain_failure

PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata with which a server says when to try again (gRFC A6), in milliseconds."""


class CitybusError(Exception):
    """A call failed; `str()` is the server's own message.

    `code` is the gRPC status, `request_id` the request's id where the server had accepted it, and `retry_after_s`
    the seconds after which the server asks to try again, where it does.
    """

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode,
        *,
        request_id: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id
        self.retry_after_s = retry_after_s


class InvalidRequest(CitybusError):
    """The request itself is wrong; the message names the field."""


class NotFound(CitybusError):
    """No such model."""


class AlreadyExists(CitybusError):
    """A live request has this id."""


class Exhausted(CitybusError):
    """The request is too large, or there are too many at once."""


class Unavailable(CitybusError):
    """The server takes no requests now; trying again may help."""


class Unreachable(Unavailable):
    """No server answers at the address."""


class Insecure(Unavailable):
    """A server answers at the address, and no secure connection to it comes about."""


class Disconnected(Unavailable):
    """The connection broke before the answer was whole."""


class Unauthenticated(CitybusError):
    """The API key, or the operator's token, is missing or wrong."""


class PermissionDenied(CitybusError):
    """The API key is another tenant's."""


class Timeout(CitybusError):
    """The answer did not come within the caller's timeout."""


class Cancelled(CitybusError):
    """The call was cancelled here."""


_CLASSES: dict[grpc.StatusCode, type[CitybusError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Exhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.DEADLINE_EXCEEDED: Timeout,
    grpc.StatusCode.CANCELLED: Cancelled,
}
_UNREACHED = "failed to connect to all addresses"
"""How gRPC's own message begins where no connection came about."""
_BROKE = ("Stream removed", "Socket closed", "recvmsg:", "sendmsg:", "ping timeout", "keepalive watchdog timeout")
"""How they begin where a connection has broken."""


def from_rpc(failure: grpc.RpcError, address: str, request_id: str | None = None) -> CitybusError:
    """The error for a failed call to the server at `address`."""
    code, message = failure.code(), failure.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and message.startswith(_UNREACHED):
        if means := explain_failure(message):
            return Insecure(f"no secure connection to the server at {address}: {means}", code)
        return Unreachable(f"no server answers at {address} ({message.rpartition(': ')[2]})", code)
    if code is grpc.StatusCode.UNAVAILABLE and message.startswith(_BROKE):
        broke = f"the connection to the server at {address} broke ({message}): send the request again"
        return Disconnected(broke, code, request_id=request_id)
    trailing = cast("Iterable[tuple[str, str | bytes]]", failure.trailing_metadata() or ())
    pushback = dict(trailing).get(PUSHBACK_KEY)
    return _CLASSES.get(code, CitybusError)(
        message or code.name,
        code,
        request_id=request_id,
        retry_after_s=int(pushback) / 1000 if pushback is not None else None,
    )


def not_ours(failure: CitybusError) -> CitybusError:
    """The error for a call that failed with `failure` and that nobody here has cancelled: servers that end cancel the
    last calls that reach them."""
    if isinstance(failure, Cancelled):
        return Unavailable(
            "the server cancelled the call, as one that ends does", failure.code, request_id=failure.request_id
        )
    return failure
