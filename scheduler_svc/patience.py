"""How long the loop waits for the executor, and for anything else."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque

from scheduler_svc.executor_client import SessionLost


class Patience:
    """Knows when each plan in flight was sent, and since when no executor does its work.

    A step that takes longer than `step_timeout_s` loses the session.
    """

    def __init__(self, step_timeout_s: float, executor_timeout_s: float) -> None:
        self._step_timeout_s = step_timeout_s
        self._executor_timeout_s = executor_timeout_s
        self._sent_at: deque[float] = deque()
        self._lost_at: float | None = None

    def start_over(self) -> None:
        """No plan is in flight."""
        self._sent_at.clear()

    def sent(self) -> None:
        """One plan more is in flight."""
        self._sent_at.append(time.monotonic())

    def answered(self) -> None:
        """The result of the oldest plan is in; the next one's time counts from now at the earliest."""
        self._lost_at = None
        self._sent_at.popleft()
        if self._sent_at:
            self._sent_at[0] = time.monotonic()

    def lost(self) -> bool:
        """There is no executor; returns whether it has been so for longer than `executor_timeout_s`.

        One that came back and went again without a result counts as away all the while.
        """
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        return now - self._lost_at > self._executor_timeout_s

    async def wait(self, wake: asyncio.Event, until: float | None) -> None:
        """Return when `wake` is set or the time `until` has come. Raises `SessionLost` where a step takes too long."""
        moments = [] if until is None else [until]
        if self._sent_at:
            moments.append(self._sent_at[0] + self._step_timeout_s)
        else:
            self._lost_at = None
        delay = max(0.0, min(moments) - time.monotonic()) if moments else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await wake.wait()
        if not wake.is_set() and self._sent_at and time.monotonic() >= self._sent_at[0] + self._step_timeout_s:
            raise SessionLost(f"no result for {self._step_timeout_s:g} s")
