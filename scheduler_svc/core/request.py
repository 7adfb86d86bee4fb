"""What enters the core, and what it says about it afterwards."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from common.step import Sampling
from scheduler_svc.core.beams import BeamParams
from scheduler_svc.core.scoring import Scored


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate, valid by construction of its maker (`scheduler_svc.validation`).

    `stop_token_ids` end it, the model's own end tokens included unless they are to be ignored, once it has more than
    `sampling.min_tokens` tokens: the executor does not draw them before. `max_tokens` None:
    as many as fit. `arrival` and `deadline` are readings of the caller's clock, in seconds. Sequences of the same
    `group` are samples of one prompt: one of them computes it, the others board when it is there. With `beams` it is a
    search, which has the `beams.width` ids from `sequence_id` on: its beams use them, and so do its answers.
    The outcome of one that `is_ranked` has a score, for which its sampling asks for log-probabilities.
    """

    sequence_id: int
    prompt: tuple[int, ...]
    sampling: Sampling
    arrival: float
    stop_token_ids: frozenset[int] = frozenset()
    max_tokens: int | None = None
    priority: int = 0
    tenant: str = ""
    deadline: float | None = None
    cache_salt: str | None = None
    group: int | None = None
    beams: BeamParams | None = None
    is_ranked: bool = False

    @property
    def num_sequences(self) -> int:
        """How many it is: one, or one for each beam."""
        return self.beams.width if self.beams else 1

    @property
    def last_id(self) -> int:
        """The largest of its sequence ids."""
        return self.sequence_id + self.num_sequences - 1


class FinishReason(enum.Enum):
    """The one outcome every accepted request ends in."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sequence ended. Times are in seconds from its arrival; None where it never came so far.

    `stop_token_id` is the token that ended it, where one did; `error` says what failed where `reason` is ERROR; `score`
    is that of a search's answer, or the mean log-probability of a ranked sequence's tokens.
    """

    reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    queued_s: float | None
    first_token_s: float | None
    total_s: float
    stop_token_id: int | None = None
    error: str | None = None
    score: float | None = None


def unserved(error: str) -> Outcome:
    """The outcome of a request of which nothing was computed."""
    return Outcome(FinishReason.ERROR, 0, 0, 0, 0, None, None, 0.0, error=error)


def ended_unencoded(reason: FinishReason, total_s: float) -> Outcome:
    """The outcome of a request that ended before its prompt was in tokens."""
    return Outcome(reason, 0, 0, 0, 0, None, None, total_s)


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a sequence came to its first token. Times are in seconds from its arrival."""

    queued_s: float
    first_token_s: float
    num_cached_tokens: int


class SequenceUpdate(NamedTuple):
    """News of one sequence: `token_ids` are its outputs number `first_index`, `first_index` + 1 and so on.

    `beginning` comes with the first one, unless that ends it. `scored` are log-probabilities, of these tokens or of
    earlier ones. `others` are news that come with it: the other answers of a search. A tuple, as there is one for every
    token.
    """

    sequence_id: int
    first_index: int
    token_ids: tuple[int, ...] = ()
    outcome: Outcome | None = None
    beginning: Beginning | None = None
    scored: Scored | None = None
    others: tuple[SequenceUpdate, ...] = ()


class NeverFits(ValueError):
    """The prompt leaves no room for one generated token in the context or in the whole pool."""

    def __init__(self, request: Request, room: int) -> None:
        """`room` is how many tokens could follow the prompt of `request`: less than 1."""
        holder, advice = "a sequence", "shorten the prompt"
        if request.beams is not None:
            holder = f"each of {request.beams.width} beams"
            advice = "make beam_search.width smaller, or shorten the prompt"
        num_prompt = len(request.prompt)
        super().__init__(
            f"the prompt has {num_prompt} tokens, and {holder} holds {num_prompt + room} here, the answer included:"
            f" {advice}"
        )


class WrongResult(ValueError):
    """A result that does not belong to the oldest plan in flight: the session with the executor is broken."""
