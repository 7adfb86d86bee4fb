"""Every error a caller of Citybus can meet, each with the gRPC status it travels as.

CitybusError                 INTERNAL             a fault of ours
|-- InvalidRequest           INVALID_ARGUMENT     the request itself is wrong; sending it again cannot help
|-- NotFound                 NOT_FOUND            no such model
|-- AlreadyExists            ALREADY_EXISTS       a live request has this id
|-- Exhausted                RESOURCE_EXHAUSTED   too large, or too many at once
|-- Unavailable              UNAVAILABLE          not now: draining, or the executor is away; try again
|   `-- Abandoned            UNAVAILABLE          an accepted request has ended for that
|-- Aborted                  ABORTED              another reader has taken the answer over
|-- FailedPrecondition       FAILED_PRECONDITION  another scheduler has taken over, or the epoch changed
|-- Unauthenticated          UNAUTHENTICATED      a token or key is missing or wrong
|-- PermissionDenied         PERMISSION_DENIED    the key is another tenant's
`-- StartupError             (never on the wire)  a service cannot start; the message says what to do
"""

from __future__ import annotations

from typing import ClassVar

import grpc


class CitybusError(Exception):
    """A fault of ours. The message is shown to the caller, so it names what to change and never prompt text."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """`retry_after_s` tells the caller of a retryable error when to try again, in seconds."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InvalidRequest(CitybusError):
    """The request itself is wrong; the message names the field."""

    code = grpc.StatusCode.INVALID_ARGUMENT


class NotFound(CitybusError):
    """No such model."""

    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(CitybusError):
    """A live request has this id."""

    code = grpc.StatusCode.ALREADY_EXISTS


class Exhausted(CitybusError):
    """Too large, or too many at once."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(CitybusError):
    """Not now: draining, or the executor is away. Trying again may help."""

    code = grpc.StatusCode.UNAVAILABLE


class Aborted(CitybusError):
    """Another reader has taken the answer over."""

    code = grpc.StatusCode.ABORTED


class Abandoned(Unavailable):
    """An accepted request has ended, for want of an executor or of time: nothing is left to attach to."""


class FailedPrecondition(CitybusError):
    """Another scheduler has taken over, or the epoch changed."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class Unauthenticated(CitybusError):
    """A token or key is missing or wrong."""

    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(CitybusError):
    """The key is another tenant's."""

    code = grpc.StatusCode.PERMISSION_DENIED


class StartupError(CitybusError):
    """A service cannot start; the message is one line that says what to do."""
