"""Log-probabilities of tokens, as a step reports them."""

from __future__ import annotations

from dataclasses import dataclass

MAX_LOGPROBS = 32
"""Most of the likeliest tokens that a step reports beside each drawn one: a beam search of 16 wants twice its width."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-softmax of the model's own logits, before anything that a `Sampling` says.

    `logprob` is the token's own, `rank` its place (1 is the likeliest; of equals the lower id comes first);
    `top_ids` are the likeliest tokens in that order, and `top_logprobs` theirs.
    """

    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownLogprobs:
    """Of known tokens number `first_position` (1 or more) and on: of a prompt, or an answer sent with its sequence."""

    sequence_id: int
    first_position: int
    tokens: tuple[TokenLogprobs, ...]
