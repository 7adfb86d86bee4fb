"""Drawing one token a row, without leaving the device: one program a row, which passes over its logits many times.

The likeliest tokens are found without sorting. Logits become integers of the same order, and the threshold is built
bit by bit, from the highest: a bit stays where enough tokens, or enough of their weight, lie at or above it. Passes
keep running results for each of COLUMNS columns and combine them once, at their end: threads wait for each other then.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.sample_tokens import Draws

_COLUMNS = 2048


def sample_tokens(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """As `kernels.sample_tokens.sample_tokens`; nothing waits for the device."""
    rows, vocab_size = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        _sample[(rows,)](
            logits.contiguous(),
            draws.temperatures,
            draws.top_ks,
            draws.top_ps,
            draws.min_ps,
            draws.seeds,
            draws.counters,
            tokens,
            vocab_size,
            COLUMNS=min(_COLUMNS, max(16, triton.next_power_of_2(vocab_size))),
            num_warps=8,
        )
    return tokens


@triton.jit(do_not_specialize=["V"])
def _sample(
    logits,  # float32 [rows, V]
    temperatures,  # float64 [rows]
    top_ks,  # int64 [rows]
    top_ps,  # float64 [rows]
    min_ps,  # float64 [rows]
    seeds,  # int64 [rows]
    counters,  # int64 [rows]
    tokens,  # int64 [rows], written
    V,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * V
    peak, token = _argmax(logits, V, COLUMNS)
    temperature = tl.load(temperatures + row)
    if (temperature > 1e-5) & (peak > -float("inf")):
        degree = temperature.to(tl.float32)
        top_k = tl.load(top_ks + row)
        top_p = tl.load(top_ps + row)
        threshold = tl.full((), -(2**31), tl.int32)
        ties = tl.full((), 0, tl.int64) + V
        if (top_k > 0) & (top_k < V):
            threshold, ties = _top_k(logits, top_k, V, COLUMNS)
        if top_p < 1.0:
            threshold, ties = _top_p(logits, peak, degree, threshold, ties, top_p, V, COLUMNS)
        least = tl.load(min_ps + row).to(tl.float32)
        number = _uniform(tl.load(seeds + row), tl.load(counters + row))
        token = _invert(logits, peak, degree, threshold, ties, least, number, V, COLUMNS)
    tl.store(tokens + row, token)


@triton.jit
def _clean(logits, columns, V):
    """Logits of some columns: NaN is impossible, infinity the greatest number, -0 is 0."""
    raw = tl.load(logits + columns, mask=columns < V, other=-float("inf"))
    raw = tl.where(raw != raw, -float("inf"), tl.minimum(raw, 3.4028234663852886e38))
    return tl.where(raw == 0.0, 0.0, raw)


@triton.jit
def _order(clean):
    """Integers that compare as the numbers do."""
    bits = clean.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _weight(clean, peak, degree):
    return tl.exp((clean - peak) / degree)


@triton.jit
def _argmax(logits, V, COLUMNS: tl.constexpr):
    """The greatest logit and the lowest id that has it."""
    best = tl.full((COLUMNS,), -float("inf"), tl.float32)
    ids = tl.full((COLUMNS,), 0, tl.int32)
    for first in range(0, V, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        clean = _clean(logits, columns, V)
        ids = tl.where(clean > best, columns, ids)
        best = tl.maximum(best, clean)
    peak = tl.max(best, axis=0)
    return peak, tl.min(tl.where(best == peak, ids, V), axis=0).to(tl.int64)


@triton.jit
def _top_k(logits, top_k, V, COLUMNS: tl.constexpr):
    """The order number of the `top_k`-th likeliest token, and how many of those that have it are kept."""
    threshold = tl.full((), -(2**31), tl.int32)
    for bit in range(0, 32):
        candidate = threshold ^ (tl.full((), 1, tl.int32) << (31 - bit))
        if _count(logits, candidate, V, COLUMNS) >= top_k:
            threshold = candidate
    above = _count(logits, threshold + 1, V, COLUMNS)
    return threshold, top_k - above


@triton.jit
def _count(logits, threshold, V, COLUMNS: tl.constexpr):
    """Tokens at or above `threshold`."""
    counts = tl.zeros((COLUMNS,), tl.int32)
    for first in range(0, V, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        reaches = (_order(_clean(logits, columns, V)) >= threshold) & (columns < V)
        counts += reaches.to(tl.int32)
    return tl.sum(counts, axis=0).to(tl.int64)


@triton.jit
def _mass(logits, peak, degree, threshold, V, COLUMNS: tl.constexpr):
    """Weight of the tokens at or above `threshold`, and the weight and number of those at it."""
    masses = tl.zeros((COLUMNS,), tl.float64)
    each = tl.zeros((COLUMNS,), tl.float32)
    equal = tl.zeros((COLUMNS,), tl.int32)
    for first in range(0, V, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        clean = _clean(logits, columns, V)
        order = _order(clean)
        weights = _weight(clean, peak, degree)
        there = columns < V
        is_equal = there & (order == threshold)
        masses += tl.where(there & (order >= threshold), weights, 0.0).to(tl.float64)
        each = tl.maximum(each, tl.where(is_equal, weights, 0.0))
        equal += is_equal.to(tl.int32)
    return tl.sum(masses, axis=0), tl.max(each, axis=0), tl.sum(equal, axis=0).to(tl.int64)


@triton.jit
def _top_p(logits, peak, degree, least, least_ties, top_p, V, COLUMNS: tl.constexpr):
    """`least` and `least_ties` are what top_k left; the same of the likeliest tokens that reach `top_p` of it."""
    mass, each, equal = _mass(logits, peak, degree, least, V, COLUMNS)
    least_ties = tl.minimum(least_ties, equal)
    target = top_p * (mass - (equal - least_ties).to(tl.float64) * each.to(tl.float64))
    threshold = tl.full((), -(2**31), tl.int32)
    for bit in range(0, 32):
        candidate = threshold ^ (tl.full((), 1, tl.int32) << (31 - bit))
        enough = candidate <= least
        if not enough:
            mass, each, equal = _mass(logits, peak, degree, candidate, V, COLUMNS)
            enough = mass >= target
        if enough:
            threshold = candidate
    mass, each, equal = _mass(logits, peak, degree, threshold, V, COLUMNS)
    ties = tl.where(threshold == least, least_ties, equal)
    missing = target - (mass - equal.to(tl.float64) * each.to(tl.float64))
    needed = tl.ceil(missing / tl.maximum(each, 1e-38).to(tl.float64))
    return threshold, tl.minimum(tl.maximum(needed, 1.0), ties.to(tl.float64)).to(tl.int64)


@triton.jit
def _uniform(seed, counter):
    """As `kernels.philox.uniform`."""
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = ((counter >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = tl.full((), 0, tl.uint32)
    word, second, _, _ = tl.philox(seed, low, high, zero, zero)
    return ((word >> 5).to(tl.float64) * 67108864.0 + (second >> 6).to(tl.float64)) * (1.0 / 9007199254740992.0)


@triton.jit
def _cumulative(logits, first, peak, degree, threshold, ties, least, before, used, V, COLUMNS: tl.constexpr):
    """Of the columns from `first` on: kept weights, the distribution up to each, and its end and used ties."""
    columns = first + tl.arange(0, COLUMNS)
    clean = _clean(logits, columns, V)
    order = _order(clean)
    is_equal = ((order == threshold) & (columns < V)).to(tl.int32)
    rank = used + tl.cumsum(is_equal, axis=0)
    kept = (order > threshold) | ((is_equal > 0) & (rank <= ties))
    weights = _weight(clean, peak, degree)
    weights = tl.where(kept & (columns < V) & (weights >= least), weights, 0.0)
    up_to = before + tl.cumsum(weights.to(tl.float64), axis=0)
    end = tl.sum(tl.where(columns == first + COLUMNS - 1, up_to, 0.0), axis=0)
    return weights, up_to, end, used + tl.sum(is_equal, axis=0)


@triton.jit
def _invert(logits, peak, degree, threshold, ties, least, number, V, COLUMNS: tl.constexpr):
    """The token at which the cumulative distribution passes `number`; both passes sum in the same order."""
    total = tl.full((), 0.0, tl.float64)
    used = tl.full((), 0, tl.int64)
    for first in range(0, V, COLUMNS):
        _, _, total, used = _cumulative(logits, first, peak, degree, threshold, ties, least, total, used, V, COLUMNS)
    below = (total.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)
    target = tl.minimum(number * total, below)
    before = tl.full((), 0.0, tl.float64)
    used = tl.full((), 0, tl.int64)
    token = tl.full((), 0, tl.int64) + V
    for first in range(0, V, COLUMNS):
        weights, up_to, before, used = _cumulative(
            logits, first, peak, degree, threshold, ties, least, before, used, V, COLUMNS
        )
        columns = first + tl.arange(0, COLUMNS)
        passing = tl.min(tl.where((up_to > target) & (weights > 0.0), columns, V), axis=0).to(tl.int64)
        token = tl.minimum(token, passing)
    return tl.minimum(token, V - 1)
