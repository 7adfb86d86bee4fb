"""Counter-based random numbers: Philox-4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011). The same key and counter give the same number anywhere, whatever was drawn before."""

from __future__ import annotations

import torch

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox_4x32(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """The four output words. Every word is an int64 tensor [n] of values below 2**32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seeds: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """Float64 numbers [n] in [0, 1), 53 bits each: number `counters` [n] of the sequence that `seeds` [n] keys.

    A seed has 64 bits; one of 2**63 or more is given as the int64 of the same bits.
    """
    zero = torch.zeros_like(counters)
    key = (seeds & _MASK, (seeds >> 32) & _MASK)
    first, second, _, _ = philox_4x32((counters & _MASK, (counters >> 32) & _MASK, zero, zero), key)
    return ((first >> 5).double() * 2.0**26 + (second >> 6).double()) * 2.0**-53


def _multiply(word: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of the product; int64 wraps around, and the mask takes the sign of the shift away."""
    product = word * multiplier
    return (product >> 32) & _MASK, product & _MASK
