"""Ends a decision of a policy that takes too long, even one that loops for ever."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType

from scheduler_svc.core.guard import OverTime

PATIENCE = 4.0
"""A decision is interrupted after this many times its limit on the wall clock: the machine may be busy elsewhere."""


class Alarm:
    """A context that may be entered again and again (not within itself), in the main thread.

    Raises `OverTime` at its end where the thread has computed for more than `limit_s` seconds, and within it, by
    SIGALRM, where it does not end.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._armed = False
        self._started = 0.0
        signal.signal(signal.SIGALRM, self._ring)

    def __enter__(self) -> None:
        self._started = time.thread_time()
        self._armed = True
        try:  # it rings again, in case the policy swallows the first
            signal.setitimer(signal.ITIMER_REAL, self._limit_s * PATIENCE, self._limit_s)
        except OverTime:  # the machine slept just now: nothing was asked yet, and `__exit__` will not come
            self._disarm()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disarm()
        took = time.thread_time() - self._started
        if kind is None and took > self._limit_s:
            raise OverTime(f"took {1000 * took:.0f} ms, and {1000 * self._limit_s:.0f} ms are allowed")

    def _disarm(self) -> None:
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _ring(self, signum: int, frame: FrameType | None) -> None:
        if self._armed and (frame is None or frame.f_code not in _AT_THE_END):
            raise OverTime(f"did not end within {1000 * self._limit_s * PATIENCE:.0f} ms")


_AT_THE_END = (Alarm.__exit__.__code__, Alarm._disarm.__code__)
"""What must not be interrupted any more: the timer would go on."""
