"""The four decisions of a scheduling policy, each with a default.

A policy is pure: it sees read-only views, does no I/O and has no clock (`now`, in seconds, is an argument). Memory
safety, budgets and stop rules are the core's; what a policy answers can make the service unfair, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from typing import Protocol


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
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before its next token can be drawn."""


@dataclass(frozen=True, slots=True)
class StepView:
    """What a policy sees of a step: `max_tokens` can be computed, `num_decodes` sequences want one token each."""

    max_tokens: int
    num_decodes: int


@dataclass(frozen=True, slots=True)
class Charge:
    """A plan computes `num_tokens` tokens for `sequence`."""

    sequence: SequenceView
    num_tokens: int


class PolicyFault(ValueError):
    """A policy answered nonsense; the message says what."""


class Policy:
    """First come, first served; a policy overrides what it decides otherwise."""

    name = "fcfs"

    def admission_order(self, waiting: ListOf[SequenceView], now: float) -> Iterable[SequenceView]:
        """Who boards next: some or all of `waiting` (which is in order of arrival), each once.

        Boarding stops at the first that does not fit, so that nobody is passed over for being large.
        """
        return waiting

    def token_budget(self, step: StepView, now: float) -> int:
        """Tokens of this step for prefill chunks; decodes get theirs first."""
        return step.max_tokens - step.num_decodes

    def victim(self, running: ListOf[SequenceView], now: float) -> SequenceView:
        """Which of `running` (never empty, in order of arrival) gives up its blocks when the pool is full."""
        return running[-1]

    def charge(self, charges: ListOf[Charge], now: float) -> None:
        """What a step computes and for whom."""

    def export_state(self) -> Mapping[str, object]:
        """What a successor needs to go on: plain values."""
        return {}

    def import_state(self, state: Mapping[str, object]) -> None:
        """Take over from a predecessor of any kind; what is not understood is left."""
