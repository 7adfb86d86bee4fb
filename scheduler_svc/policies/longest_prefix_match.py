"""Who shares most with the prefix cache boards first, before it is reclaimed; nobody waits for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.core.policy import Policy, SequenceView, StepView


@dataclass(frozen=True, slots=True)
class LongestPrefixMatchParameters:
    """How long it may be unfair.

    Attributes:
        max_wait_s: who has waited longer boards first, whatever is cached of it, in seconds.
    """

    max_wait_s: float = 10.0

    def __post_init__(self) -> None:
        if self.max_wait_s < 0:
            raise ValueError("max_wait_s must not be less than 0")


class LongestPrefixMatch(Policy):
    """Boards by cached tokens, as SGLang's cache-aware scheduling (Zheng et al. 2024), with a bound on waiting."""

    name = "longest_prefix_match"
    Parameters = LongestPrefixMatchParameters
    parameters: LongestPrefixMatchParameters

    def admission_order(self, waiting: Sequence[SequenceView], step: StepView, now: float) -> list[SequenceView]:
        return sorted(waiting, key=lambda view: self._rank(view, now))

    def _rank(self, view: SequenceView, now: float) -> tuple[bool, int, int]:
        patient = now - view.waiting_since > self.parameters.max_wait_s
        cached = view.num_prompt_tokens + view.num_output_tokens - view.num_uncached_tokens
        return not patient, 0 if patient else -cached, view.sequence_id
