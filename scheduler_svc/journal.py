"""What a scheduler writes down for its successor: who was accepted, their tokens, and how they ended.

The loop and the frontend say what happens and never wait, but for one thing: a request is committed before its client
hears of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from scheduler_svc.core.request import Beginning, Outcome
from scheduler_svc.journal_file import Entry


class Journal(Protocol):
    """Where a scheduler writes. A sequence is accepted first, then has tokens, then an outcome."""

    @property
    def lasts(self) -> bool:
        """Whether a successor can read it."""

    @property
    def fails(self) -> bool:
        """Whether nothing can be written at the moment, so that nothing is accepted."""

    def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        """Call it, and nothing else, whenever `fails` has changed."""

    @property
    def last_id(self) -> int:
        """The largest sequence id that a predecessor left; 0 where it left none."""

    @property
    def policy(self) -> bytes | None:
        """What a predecessor remembered of its policy; None where it left nothing."""

    def take_entries(self) -> list[Entry]:
        """What a predecessor left, in order of arrival; once."""

    async def accept(self, sequence_ids: Sequence[int], request: bytes) -> None:
        """Write a request down, served by these sequences; returns once it is safe. Raises `Unavailable`."""

    def append(self, sequence_id: int, first_index: int, token_ids: Sequence[int]) -> None:
        """Tokens of a sequence, soon to be written."""

    def begin(self, sequence_id: int, beginning: Beginning) -> None:
        """How a sequence came to its first token, soon to be written."""

    def end(self, sequence_id: int, outcome: Outcome) -> None:
        """How a sequence ended, soon to be written."""

    def remember_policy(self, record: bytes) -> None:
        """What a successor is to know of the policy, soon to be written."""

    async def flushed(self) -> None:
        """Return once all that was said is safe, or cannot be any more."""

    async def close(self) -> None:
        """Write the rest, and let a successor in."""


class NoJournal:
    """A scheduler without a successor that knows its requests."""

    lasts = False
    fails = False
    last_id = 0
    policy = None

    def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        return

    def take_entries(self) -> list[Entry]:
        return []

    async def accept(self, sequence_ids: Sequence[int], request: bytes) -> None:
        return

    def append(self, sequence_id: int, first_index: int, token_ids: Sequence[int]) -> None:
        return

    def begin(self, sequence_id: int, beginning: Beginning) -> None:
        return

    def end(self, sequence_id: int, outcome: Outcome) -> None:
        return

    def remember_policy(self, record: bytes) -> None:
        return

    async def flushed(self) -> None:
        return

    async def close(self) -> None:
        return
