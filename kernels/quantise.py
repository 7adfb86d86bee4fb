"""Keys and values in one byte a number, with a scale for each row of them."""

from __future__ import annotations

import torch

GREATEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The dtypes that a pool with scales can have, and the greatest number of each."""

LEAST_PEAK = 1e-30
"""Rows of smaller numbers than this become zeros: their scales could not be told from zero."""


def quantise(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`rows` [..., D] as numbers [..., D] of `dtype`, and float32 scales [...] that give the rows back as a product.

    A row's scale follows from its own greatest number alone, so it is the same in every batch. A row that is not finite
    has a scale that is not: it stays as wrong as it was.
    """
    wide = rows.float()
    scales = wide.abs().amax(-1).clamp_min(LEAST_PEAK) / GREATEST[dtype]
    numbers = wide / scales[..., None]
    if dtype is torch.int8:
        numbers = (numbers + 0.5).floor_()
    return numbers.to(dtype), scales
