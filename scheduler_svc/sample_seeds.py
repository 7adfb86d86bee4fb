"""The seeds of the samples of one request."""

from __future__ import annotations

_STRIDE = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: the samples of requests whose seeds are near each other never share one."""


def sample_seed(seed: int, index: int) -> int:
    """The seed of sample number `index` (from 0) of a request with this seed; both seeds have 64 bits."""
    return (seed + index * _STRIDE) % 2**64
