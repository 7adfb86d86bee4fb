"""The door of the generation service: who has a key comes in, as the tenant that it stands for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from common.doorkeeper import refusing, token_of
from common.errors import CitybusError, PermissionDenied, Unauthenticated
from scheduler_svc.api_keys import ApiKeys

_GUARDED = "/citybus.v1.GenerationService/"
_REFUSAL = (
    "the API key is missing or wrong: send the metadata 'authorization: Bearer KEY' with one that the server's operator"
    " has made with 'citybus keys new' (clients of ours take it from the variable CITYBUS_API_KEY or --api-key-file)"
)


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a key, and says in every request whose it is. Health and reflection are open.

    `keys` gives the keys that count now; `on_refused` is told of everybody who is not let in.
    """

    def __init__(self, keys: Callable[[], ApiKeys], on_refused: Callable[[CitybusError], None]) -> None:
        self._keys = keys
        self._on_refused = on_refused

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_GUARDED):
            return handler
        tenant = self._keys().tenant_of(token_of(handler_call_details))
        if tenant is None:
            return refusing(handler, self._refuse(Unauthenticated(_REFUSAL)))
        return self._serving(handler, tenant)

    def _serving(self, handler: Any, tenant: str) -> Any:
        """The handler, for requests of `tenant`: the field of that name has it when the service sees them."""
        gives = "stream" if handler.response_streaming else "unary"
        servicer = getattr(handler, f"unary_{gives}")

        async def serve(request: Any, context: object) -> Any:
            if "tenant" in request.DESCRIPTOR.fields_by_name:
                if request.tenant not in ("", tenant):
                    raise self._refuse(PermissionDenied("tenant: the API key is another tenant's; leave it empty"))
                request.tenant = tenant
            return await servicer(request, context)

        make = getattr(grpc, f"unary_{gives}_rpc_method_handler")
        return make(serve, handler.request_deserializer, handler.response_serializer)

    def _refuse(self, error: CitybusError) -> CitybusError:
        self._on_refused(error)
        return error
