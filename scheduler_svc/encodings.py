"""Requests whose prompt is being encoded: they are in no queue yet, and end all the same when they should."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from scheduler_svc.core.request import FinishReason
from scheduler_svc.ride import Key

T = TypeVar("T")


class Unencoded(Exception):
    """A request has ended, for `reason`, before its prompt was encoded."""

    def __init__(self, reason: FinishReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class Encodings:
    """The prompts that are being encoded, each by the key of its request."""

    def __init__(self) -> None:
        self._tasks: dict[Key, asyncio.Task[Any]] = {}

    async def run(self, key: Key, encoding: Coroutine[Any, Any, T], within_s: float | None) -> T:
        """What `encoding` returns. Raises `Unencoded` where `cancel` or `within_s` seconds come before that."""
        encoded: asyncio.Task[T] = asyncio.create_task(encoding)
        self._tasks[key] = encoded
        try:
            await asyncio.wait((encoded,), timeout=within_s)
            if not encoded.done():
                raise Unencoded(FinishReason.DEADLINE)
            if encoded.cancelled():
                raise Unencoded(FinishReason.CANCELLED)
            result = encoded.result()
            if key not in self._tasks:  # `cancel` has come since it was done
                raise Unencoded(FinishReason.CANCELLED)
            return result
        finally:
            self._tasks.pop(key, None)
            encoded.cancel()
            del encoded  # it holds its error, which holds this frame: a ring that would keep the prompt

    def cancel(self, key: Key) -> bool:
        """End the request with that key; returns whether its prompt was being encoded."""
        encoded = self._tasks.pop(key, None)
        if encoded is not None:
            encoded.cancel()
        return encoded is not None
