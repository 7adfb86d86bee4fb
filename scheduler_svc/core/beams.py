"""Beam search over one prompt: which continuations survive, which are answers, and when it is over.

The rules are those of transformers' `generate(num_beams=...)`, so that both give the same answers.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from common.logprobs import TokenLogprobs

MAX_WIDTH = 16


class EarlyStopping(enum.Enum):
    """When a search ends that has found as many answers as it is wide."""

    HEURISTIC = "heuristic"
    """Where the best beam, were it to end now, is worse than the worst answer."""
    FULL = "full"
    """At once."""
    NEVER = "never"
    """Where no beam can become better than the worst answer."""


@dataclass(frozen=True, slots=True)
class BeamParams:
    """`width` beams of which the `num_answers` best are told.

    A score is the sum of log-probabilities divided by the number of tokens to the power of `length_penalty`.
    """

    width: int
    num_answers: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC


@dataclass(frozen=True, slots=True)
class Beam:
    """The tokens of an answer in the making, and the sum of their log-probabilities."""

    tokens: tuple[int, ...] = ()
    logprob: float = 0.0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A complete answer; `stop_token_id` is the token that ended it, None where its length did."""

    tokens: tuple[int, ...]
    score: float
    stop_token_id: int | None


@dataclass(frozen=True, slots=True)
class _Candidate:
    parent: int
    token: int
    logprob: float


class BeamSearch:
    """One search. `beams` are those that go on, `answers` the complete ones, the best first; `parents` says which beam
    of the step before each of `beams` continues.
    """

    def __init__(self, params: BeamParams, stop_token_ids: frozenset[int]) -> None:
        self.params = params
        self._stop_token_ids = stop_token_ids
        self.start_over()

    def start_over(self) -> None:
        """Forget everything: the search begins with the prompt again, and comes to the same end."""
        self.beams = [Beam()]
        self.parents = [0]
        self.answers: list[Hypothesis] = []
        self.is_over = False

    @property
    def length(self) -> int:
        """Tokens of every beam."""
        return len(self.beams[0].tokens)

    @property
    def told(self) -> list[Hypothesis]:
        """The best answers, once the search is over."""
        return self.answers[: self.params.num_answers] if self.is_over else []

    def advance(self, heard: Sequence[TokenLogprobs], max_tokens: int) -> None:
        """Go on by a token, from the likeliest continuations of each beam: `width`, and one for each stop token.

        `max_tokens` is the most an answer has.
        """
        width, length = self.params.width, self.length + 1
        ranked = sorted(self._candidates(heard), key=lambda one: -one.logprob)
        ends = [one.token in self._stop_token_ids for one in ranked]
        for one, has_stopped in list(zip(ranked, ends, strict=True))[:width]:
            if has_stopped or length == max_tokens:
                self._answer(one, length, has_stopped=has_stopped)
        going_on = [one for one, has_stopped in zip(ranked, ends, strict=True) if not has_stopped][:width]
        best = max(one.logprob for one in going_on)
        self.is_over = length == max_tokens or not self._may_improve(best, length, max_tokens)
        self.parents = [one.parent for one in going_on]
        self.beams = [Beam((*self.beams[one.parent].tokens, one.token), one.logprob) for one in going_on]

    def _candidates(self, heard: Sequence[TokenLogprobs]) -> list[_Candidate]:
        return [
            _Candidate(parent, token, beam.logprob + logprob)
            for parent, (beam, found) in enumerate(zip(self.beams, heard, strict=True))
            for token, logprob in zip(found.top_ids, found.top_logprobs, strict=True)
        ]

    def _answer(self, one: _Candidate, length: int, *, has_stopped: bool) -> None:
        tokens = (*self.beams[one.parent].tokens, one.token)
        found = Hypothesis(tokens, self._score(one.logprob, length), one.token if has_stopped else None)
        self.answers = sorted([*self.answers, found], key=lambda each: -each.score)[: self.params.width]

    def _score(self, logprob: float, length: int) -> float:
        return float(logprob / length**self.params.length_penalty)

    def _may_improve(self, best: float, length: int, max_tokens: int) -> bool:
        if len(self.answers) < self.params.width:
            return True
        if self.params.early_stopping is EarlyStopping.FULL:
            return False
        never = self.params.early_stopping is EarlyStopping.NEVER
        most = max_tokens if never and self.params.length_penalty > 0 else length
        return self._score(best, most) > self.answers[-1].score
