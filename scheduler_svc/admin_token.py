"""Who may operate the scheduler: whoever knows the admin token."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc

from common.errors import StartupError, Unauthenticated

TOKEN_VARIABLE = "CITYBUS_ADMIN_TOKEN"  # its name, not its value
"""Environment variable with the token, where no file is given. Never a flag: those show in the process list."""

_OPEN_METHODS = frozenset({"/citybus.admin.v1.AdminService/GetStatus"})
_GUARDED_PREFIX = "/citybus.admin.v1."


def read_token(path: Path | None, environ: Mapping[str, str]) -> str | None:
    """The token; None where there is none. Raises `StartupError` where the file gives none."""
    if path is None:
        return environ.get(TOKEN_VARIABLE) or None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"the admin token cannot be read from {path}: {error}") from error
    if not token or not token.isascii():
        raise StartupError(f"{path} must hold one line of ASCII, the admin token")
    return token


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses, with UNAUTHENTICATED, calls of the operator's service that lack the token; all, where there is none."""

    def __init__(self, token: str | None) -> None:
        self._expected = None if token is None else f"Bearer {token}".encode()

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method in _OPEN_METHODS or not method.startswith(_GUARDED_PREFIX):
            return handler
        given = dict(handler_call_details.invocation_metadata or ()).get("authorization", b"")
        given = given.encode() if isinstance(given, str) else given
        if self._expected is not None and hmac.compare_digest(given, self._expected):
            return handler
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(_refuse_stream, handler.request_deserializer)
        return grpc.unary_unary_rpc_method_handler(_refuse, handler.request_deserializer)


async def _refuse(request: object, context: object) -> None:
    raise Unauthenticated(
        "the admin token is missing or wrong: send the metadata 'authorization: Bearer TOKEN' with the scheduler's"
        f" (its {TOKEN_VARIABLE} or --admin-token-file; it has to have one where it listens beyond its own machine)"
    )


async def _refuse_stream(request: object, context: object) -> AsyncIterator[None]:
    await _refuse(request, context)
    yield
