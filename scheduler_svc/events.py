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


@dataclass(frozen=True, slots=True)
class HandOver:
    """This scheduler has taken over what another one left, under `term`.

    `adopted_sequences` run on in their blocks. `queued_sequences` wait; of these, `recomputed_tokens` is what those
    that had begun to answer have to compute again: all their tokens, without whole blocks in the prefix cache.
    `cached_blocks` are held by nobody and keep a known prefix. `dropped_sequences` were resident and unknown.
    """

    term: int
    adopted_sequences: int
    queued_sequences: int
    recomputed_tokens: int
    cached_blocks: int
    dropped_sequences: int

    def __bool__(self) -> bool:
        return any((self.adopted_sequences, self.queued_sequences, self.cached_blocks, self.dropped_sequences))


Event = (
    PolicyChanged
    | PolicyRolledBack
    | Preempted
    | ExecutorConnected
    | ExecutorLost
    | DrainingChanged
    | PoliciesReloaded
    | HandOver
)


@dataclass(frozen=True, slots=True)
class Numbered:
    """An event, its number, and when it happened, in seconds since 1970."""

    number: int
    unix_s: float
    event: Event


class EventBus:
    """Gives every event to every watcher; the hand-over, which comes before anybody can watch, to later ones too."""

    def __init__(self) -> None:
        self._number = 0
        self._hand_over: Numbered | None = None
        self._queues: set[asyncio.Queue[Numbered]] = set()

    def publish(self, event: Event) -> None:
        """Tell all watchers."""
        self._number += 1
        numbered = Numbered(self._number, time.time(), event)
        if isinstance(event, HandOver):
            self._hand_over = numbered
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(numbered)

    @contextmanager
    def watch(self) -> Iterator[asyncio.Queue[Numbered]]:
        """A queue of what happens meanwhile, after the hand-over that this scheduler began with."""
        queue: asyncio.Queue[Numbered] = asyncio.Queue(MAX_UNREAD)
        if self._hand_over is not None:
            queue.put_nowait(self._hand_over)
        self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)
