"""How far the log-probabilities that a sequence asks for have come."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from common.logprobs import KnownLogprobs, TokenLogprobs
from common.step import Sampling


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of the tokens number `first_position`, `first_position` + 1 and so on of a sequence."""

    first_position: int
    scores: tuple[TokenLogprobs, ...]


class Scoring:
    """Log-probabilities come in the order of the tokens, each once: what comes again is left out.

    They come of whatever is computed, so tokens whose log-probabilities are missing must not be skipped by a prefix
    hit, nor by taking over what an executor has computed.
    """

    __slots__ = ("_missing", "_num_prompt", "_output", "_stop")

    def __init__(self, sampling: Sampling, num_prompt_tokens: int) -> None:
        self._missing = first_scored(sampling, num_prompt_tokens)
        self._num_prompt = num_prompt_tokens
        self._output: list[float] = []
        self._stop = num_prompt_tokens if sampling.num_logprobs is None else sys.maxsize

    @property
    def num_skippable(self) -> int:
        """Most leading tokens that need not be computed."""
        return sys.maxsize if self._missing >= self._stop else self._missing - 1

    def take(self, part: KnownLogprobs) -> Scored | None:
        """What of `part` is news."""
        known = self._missing - part.first_position
        news = part.tokens[known:] if known >= 0 else ()
        if not news:
            return None
        scored = Scored(self._missing, news)
        self._output.extend(score.logprob for score in news[max(0, self._num_prompt - self._missing) :])
        self._missing += len(news)
        return scored

    def mean(self, num_tokens: int) -> float | None:
        """The mean log-probability of the first `num_tokens` generated tokens; None for none, and where not known."""
        if not 0 < num_tokens <= len(self._output):
            return None
        return sum(self._output[:num_tokens]) / num_tokens


def first_scored(sampling: Sampling, num_prompt_tokens: int) -> int:
    """Number of the first token whose log-probability is asked for; beyond all where none is."""
    if sampling.num_prompt_logprobs is not None:
        return 1
    return num_prompt_tokens if sampling.num_logprobs is not None else sys.maxsize
