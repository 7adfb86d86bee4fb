"""Whether the client was the limit: how late it sent, how late its event loop ran, and how busy it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from citybus.bench.distribution import percentile

LAG_INTERVAL_S = 0.02
"""Seconds between two looks at the event loop."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may show before its results are declared invalid.

    Seconds that requests are sent late and that the event loop wakes late, or this share of the median end-to-end
    latency where that is more; and processor time as a share of one core.
    """

    late_s: float = 0.1
    lag_s: float = 0.05
    latency_share: float = 0.01
    cpu: float = 0.9


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What the client itself did.

    `late_p99_s` is how late requests were sent, `lag_p99_s` how late the event loop woke (both the 99th percentile, in
    seconds), `cpu` the processor time it took as a share of one core.
    """

    late_p99_s: float
    late_max_s: float
    lag_p99_s: float
    lag_max_s: float
    cpu: float

    def faults(self, limits: Limits, median_e2e_s: float) -> list[str]:
        """Why the results are not the server's; empty where they are."""
        found = []
        harmless = limits.latency_share * median_e2e_s
        if self.late_p99_s > max(limits.late_s, harmless):
            found.append(f"requests were sent up to {1000 * self.late_p99_s:.0f} ms late (p99)")
        if self.lag_p99_s > max(limits.lag_s, harmless):
            found.append(f"the client's event loop ran {1000 * self.lag_p99_s:.0f} ms late (p99)")
        if self.cpu > limits.cpu:
            found.append(f"the client used {100 * self.cpu:.0f} % of a core")
        return found


class LagWatch:
    """Measures how late the event loop wakes, while it is entered; `load` gives what it found."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._task: asyncio.Task[None] | None = None
        self._cpu = 0.0
        self._wall = 0.0

    def __enter__(self) -> Self:
        self._cpu, self._wall = time.process_time(), time.monotonic()
        self._task = asyncio.create_task(self._watch())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
        self._cpu, self._wall = time.process_time() - self._cpu, time.monotonic() - self._wall

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lags.append(loop.time() - due)

    def load(self, lateness: Sequence[float]) -> ClientLoad:
        """What the client did while it was watched, with how late each request was sent, in seconds."""
        return ClientLoad(
            percentile(lateness, 99),
            max(lateness),
            percentile(self._lags, 99) if self._lags else 0.0,
            max(self._lags, default=0.0),
            self._cpu / self._wall if self._wall > 0 else 0.0,
        )
