"""Drawing one token a row.

A row's filters apply in this order: temperature, top_k, top_p, min_p. What they leave is drawn from by inverting its
cumulative distribution, in the order of token ids, at one counter-based random number. A row is worked on by itself,
so no neighbour can change its draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.philox import uniform

GREEDY_BELOW = 1e-5
"""Temperatures up to this are greedy: they would only choose between tokens of equal logits."""

_TOP_P_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row is drawn; every tensor is [rows].

    float64 `temperatures` (0 is greedy), `top_ps` (1 is off) and `min_ps` (0 is off); int64 `top_ks` (0 is off),
    `seeds` (the bits of an unsigned number) and `counters`.
    """

    temperatures: torch.Tensor
    top_ks: torch.Tensor
    top_ps: torch.Tensor
    min_ps: torch.Tensor
    seeds: torch.Tensor
    counters: torch.Tensor


def sample_tokens(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Token ids, int64 [rows], from float32 `logits` [rows, vocab_size].

    Of equally likely tokens greedy takes the lowest id, and top_k and top_p keep the lowest ids. A NaN logit counts
    as impossible; a row that has nothing else gives token 0.
    """
    peaks = logits.amax(dim=-1)
    if not peaks.isfinite().all():
        logits = torch.where(logits.isnan(), -torch.inf, logits).clamp(max=torch.finfo(logits.dtype).max)
        peaks = logits.amax(dim=-1)
    tokens = logits.argmax(dim=-1)
    drawn = (draws.temperatures > GREEDY_BELOW) & (peaks > -torch.inf)
    if not drawn.any():
        return tokens
    numbers = uniform(draws.seeds, draws.counters)
    columns = (draws.temperatures, draws.top_ks, draws.top_ps, draws.min_ps)
    settings = list(zip(*(column.tolist() for column in columns), strict=True))
    for row in drawn.nonzero().flatten().tolist():
        tokens[row] = _draw(logits[row], numbers[row], *settings[row])
    return tokens


def _draw(
    logits: torch.Tensor, number: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """The token of one row. Tokens that top_k cannot leave are put aside first."""
    if not 0 < top_k < len(logits):
        return _invert(_weights(logits, temperature, 0, top_p, min_p), number)
    left = (logits >= logits.topk(top_k).values[-1]).nonzero().flatten()
    return left[_invert(_weights(logits[left], temperature, top_k, top_p, min_p), number)]


def _weights(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Unnormalised probabilities [vocab_size], 0 where filtered out; the likeliest token has 1."""
    peak = logits.max()
    weights = ((logits - peak) / temperature).exp()
    count = min(top_k or len(logits), len(logits))
    if top_p < 1:
        total = weights if count == len(logits) else ((logits.topk(count).values - peak) / temperature).exp()
        count = _nucleus(logits, peak, temperature, count, top_p * total.sum(dtype=torch.float64))
    if count < len(logits):
        weights.masked_fill_(~_likeliest(logits, count), 0)
    return weights.masked_fill_(weights < min_p, 0) if min_p > 0 else weights


def _nucleus(logits: torch.Tensor, peak: torch.Tensor, temperature: float, count: int, mass: torch.Tensor) -> int:
    """How many of the `count` likeliest tokens it takes to reach `mass`. Few do as a rule: a full sort comes last."""
    for candidates in (min(count, _TOP_P_CANDIDATES), count):
        likeliest = logits.topk(candidates).values
        below = ((likeliest - peak) / temperature).exp().cumsum(0, dtype=torch.float64) < mass
        if not below[-1]:
            return int(below.sum()) + 1
    return count


def _likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Which tokens are the `count` likeliest; of equals the first."""
    threshold = logits.topk(count).values[-1]
    above, equal = logits > threshold, logits == threshold
    return above | (equal & (equal.cumsum(0) <= count - above.sum()))


def _invert(weights: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """The token at which the cumulative distribution passes `number`, in [0, 1)."""
    cumulative = weights.cumsum(0, dtype=torch.float64)
    total = cumulative[-1]
    target = torch.minimum(number * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)
