"""Who may call: bearer tokens in the metadata `authorization`, and the refusal of who has none."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from typing import Any

import grpc

from common.errors import CitybusError, Unauthenticated

AUTHORIZATION = "authorization"


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata that brings `token`."""
    return ((AUTHORIZATION, f"Bearer {token}"),)


def token_of(call: grpc.HandlerCallDetails) -> bytes:
    """The token that a call brings; empty where it brings none."""
    value = dict(call.invocation_metadata or ()).get(AUTHORIZATION, b"")
    scheme, _, token = (value.encode() if isinstance(value, str) else value).partition(b" ")
    return token if scheme.lower() == b"bearer" else b""


def refusing(handler: Any, error: CitybusError) -> Any:
    """A handler of the same kind that answers with `error`, without looking at what was sent."""

    async def refuse(request: object, context: object) -> None:
        raise error

    takes = "stream" if handler.request_streaming else "unary"
    gives = "stream" if handler.response_streaming else "unary"
    return getattr(grpc, f"{takes}_{gives}_rpc_method_handler")(refuse, request_deserializer=bytes)


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses, with UNAUTHENTICATED and the message `refusal`, calls that lack the token; all, where there is none.

    Asked are the methods that begin with `guarded`, unless they are among `open_methods`.
    """

    def __init__(self, token: str | None, guarded: str, refusal: str, open_methods: Collection[str] = ()) -> None:
        self._expected = None if token is None else token.encode()
        self._guarded = guarded
        self._refusal = refusal
        self._open_methods = frozenset(open_methods)

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith(self._guarded) or method in self._open_methods:
            return handler
        given = token_of(handler_call_details)
        if self._expected is not None and hmac.compare_digest(given, self._expected):
            return handler
        return refusing(handler, Unauthenticated(self._refusal))
