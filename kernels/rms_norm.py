"""Root mean square layer normalisation (Zhang and Sennrich 2019)."""

from __future__ import annotations

import torch


def rms_norm(
    hidden: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise the rows of `hidden` [rows, size], after adding `residual` where there is one.

    Returns the normalised rows times `weight` [size], and the rows they were made of: the next residual. The mean is
    taken in float32 whatever the dtype.
    """
    total = hidden if residual is None else hidden + residual
    wide = total.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(weight.dtype), total
