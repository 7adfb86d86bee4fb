"""Rotary position embedding (Su et al. 2021)."""

from __future__ import annotations

import torch


def rotary(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn every head of `heads` [tokens, heads, head_dim] by its token's angles.

    `cos` and `sin` are float32 [tokens, head_dim / 2]. Dimension i is turned together with dimension
    i + head_dim / 2, as Hugging Face checkpoints have it (the paper pairs neighbours). Computed in float32.
    """
    first, second = heads.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(heads.dtype)
