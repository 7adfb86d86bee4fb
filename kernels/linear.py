"""Matrix product with a weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F

_MIN_ROWS = 4
"""BLAS libraries have kernels of their own for fewer rows, which sum in another order."""


def linear(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`inputs` [rows, in] times the transpose of `weight` [out, in], both of one dtype: [rows, out]."""
    rows = inputs.shape[0]
    if rows >= _MIN_ROWS or rows == 0:
        return F.linear(inputs, weight)
    padded = inputs.new_zeros(_MIN_ROWS, inputs.shape[1])
    padded[:rows] = inputs
    return F.linear(padded, weight)[:rows]
