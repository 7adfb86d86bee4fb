"""Which requests are being served, so that no two of one tenant share an id, and not too many are at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from common.errors import AlreadyExists, Exhausted

_RETRY_AFTER_S = 1.0


class LiveRequests:
    """The live requests of all tenants, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._live: set[tuple[str, str]] = set()

    @contextmanager
    def hold(self, tenant: str, request_id: str) -> Iterator[None]:
        """Keep a request live inside the `with` block. Raises `AlreadyExists` or `Exhausted`."""
        key = (tenant, request_id)
        if key in self._live:
            raise AlreadyExists("request_id: a live request of this tenant has this id; choose another")
        if len(self._live) >= self._limit:
            raise Exhausted(
                f"the server has {self._limit} requests, as many as it takes at once; try again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._live.add(key)
        try:
            yield
        finally:
            self._live.discard(key)
