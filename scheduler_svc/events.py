"""What happens to a scheduler, told to whoever watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MAX_UNREAD = 256
"""Events kept for a watcher that reads too slowly; the eldest are dropped."""


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """`policy` decides in the place of `before`."""

    policy: str
    before: str


@dataclass(frozen=True, slots=True)
class PolicyRolledBack:
    """`failed` did wrong what `reason` says, and `policy` decides again."""

    policy: str
    failed: str
    reason: str


@dataclass(frozen=True, slots=True)
class Preempted:
    """Sequences gave up their blocks in a step."""

    sequence_ids: tuple[int, ...]
    step: int


@dataclass(frozen=True, slots=True)
class ExecutorConnected:
    """An executor is driven from now on."""


@dataclass(frozen=True, slots=True)
class ExecutorLost:
    """The executor is away."""


@dataclass(frozen=True, slots=True)
class DrainingChanged:
    """New requests are refused, or taken again."""

    draining: bool


@dataclass(frozen=True, slots=True)
class PoliciesReloaded:
    """New policy code was read."""

    loaded: tuple[str, ...]


Event = (
    PolicyChanged | PolicyRolledBack | Preempted | ExecutorConnected | ExecutorLost | DrainingChanged | PoliciesReloaded
)


@dataclass(frozen=True, slots=True)
class Numbered:
    """An event, its number, and when it happened, in seconds since 1970."""

    number: int
    unix_s: float
    event: Event


class EventBus:
    """Gives every event to every watcher."""

    def __init__(self) -> None:
        self._number = 0
        self._queues: set[asyncio.Queue[Numbered]] = set()

    def publish(self, event: Event) -> None:
        """Tell all watchers."""
        self._number += 1
        numbered = Numbered(self._number, time.time(), event)
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(numbered)

    @contextmanager
    def watch(self) -> Iterator[asyncio.Queue[Numbered]]:
        """A queue of what happens meanwhile."""
        queue: asyncio.Queue[Numbered] = asyncio.Queue(MAX_UNREAD)
        self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)
