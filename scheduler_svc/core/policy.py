"""The decisions of a scheduling policy, each with a default.

A policy is pure: it sees read-only views, does no I/O and has no clock (`now`, in seconds, is an argument). Memory
safety, budgets and stop rules are the core's; what a policy answers can make the service unfair, never wrong, and one
that fails is replaced (`scheduler_svc.core.guard`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


class SequenceView(Protocol):
    """What a policy sees of a sequence. Times are in seconds on the clock of `now`."""

    @property
    def sequence_id(self) -> int:
        """Unique, and rising with arrival."""

    @property
    def arrival(self) -> float:
        """When it arrived."""

    @property
    def priority(self) -> int:
        """Higher asks to be served sooner."""

    @property
    def tenant(self) -> str:
        """Who is billed."""

    @property
    def deadline(self) -> float | None:
        """When its time limit passes."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    def max_output_tokens(self) -> int:
        """Most tokens it may generate: what was asked for and what fits."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before its next token can be drawn, were nothing cached."""

    @property
    def num_uncached_tokens(self) -> int:
        """`num_remaining` without what the prefix cache holds in whole blocks; cheap to ask again."""

    @property
    def waiting_since(self) -> float:
        """When it began to wait: its arrival, or its last preemption."""


@dataclass(frozen=True, slots=True)
class StepView:
    """What a policy sees of a step.

    `max_tokens` can be computed. Of the `running` sequences, in order of arrival, `num_decodes` want one token each
    and `num_prefills` more. `num_seats` are free. The pool has `num_blocks` blocks of `block_size` tokens.
    """

    max_tokens: int
    num_decodes: int
    num_prefills: int = 0
    running: ListOf[SequenceView] = ()
    num_waiting: int = 0
    num_seats: int = 0
    num_blocks: int = 0
    block_size: int = 1

    @property
    def num_running(self) -> int:
        """Sequences that have a seat."""
        return len(self.running)


@dataclass(frozen=True, slots=True)
class Charge:
    """A plan computes `num_tokens` tokens for `sequence`, and draws `num_drawn` new ones: 0 or 1, or one a beam.

    Guesses of speculation come as a charge of their own, which draws none.
    """

    sequence: SequenceView
    num_tokens: int
    num_drawn: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Seats, and blocks of the pool, that are set aside: nobody else gets them, whether they are used or not."""

    num_seats: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class NoParameters:
    """There is nothing to set."""


class Policy:
    """First come, first served; a policy overrides what it decides otherwise.

    `Parameters` is a frozen dataclass with a default for every field; its `__post_init__` raises ValueError where a
    value makes no sense.
    """

    name: ClassVar[str] = "fcfs"
    Parameters: ClassVar[type[Any]] = NoParameters

    def __init__(self, parameters: Any = None) -> None:
        self.parameters = self.Parameters() if parameters is None else parameters

    def admission_order(self, waiting: ListOf[SequenceView], step: StepView, now: float) -> Iterable[SequenceView]:
        """Who boards next: some or all of `waiting` (which is in order of arrival), each once.

        Boarding stops at the first that does not fit, so that nobody is passed over for being large.
        """
        return waiting

    def token_budget(self, step: StepView, now: float) -> int:
        """Tokens of this step for prefill chunks, 0 to `step.max_tokens`; decodes get theirs first."""
        return max(0, step.max_tokens - step.num_decodes)

    def boarding_reserve(self, step: StepView, now: float) -> int:
        """How many of the prefill tokens are kept from prefills under way, for who boards in this step.

        0 to `step.max_tokens`. Asked only where there are both; one token at least goes on to the former.
        """
        return 0

    def prefill_order(self, prefills: ListOf[SequenceView], now: float) -> Iterable[SequenceView]:
        """In which order prefills under way (in order of arrival) are continued; who is left out comes last."""
        return prefills

    def victim(self, running: ListOf[SequenceView], now: float) -> SequenceView:
        """Which of `running` (never empty, in order of arrival) gives up its blocks when the pool is full."""
        return running[-1]

    def shed(self, waiting: ListOf[SequenceView], now: float) -> Iterable[SequenceView]:
        """Who of `waiting` cannot be served in time and ends now, as if its time limit had passed.

        Only requests with a time limit that have no token yet can be shed: a beam search that waits has none, whatever
        it has computed, as it starts over.
        """
        return ()

    def charge(self, charges: ListOf[Charge], now: float) -> None:
        """What a step computes and for whom."""

    def reservation(self, running: ListOf[SequenceView]) -> Reservation | None:
        """What is set aside for `running`; None where that is what they hold. Only for the operator to read."""
        return None

    def export_state(self) -> Mapping[str, object]:
        """What a successor needs to go on: plain values."""
        return {}

    def import_state(self, state: Mapping[str, object]) -> None:
        """Take over from a predecessor of any kind; what is not understood is left."""
