"""Root mean square layer normalisation, fused with the addition of the residual: one program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def rms_norm(
    hidden: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `kernels.rms_norm.rms_norm`."""
    rows, size = hidden.shape
    normed = torch.empty_like(hidden)
    total = hidden if residual is None else torch.empty_like(hidden)
    padded = triton.next_power_of_2(size)
    if rows:
        _rms_norm[(rows,)](
            hidden,
            residual,
            weight,
            normed,
            total,
            eps,
            SIZE=size,
            PADDED=padded,
            num_warps=min(max(padded // 512, 1), 16),
        )
    return normed, total


@triton.jit
def _rms_norm(
    hidden,  # [rows, SIZE]
    residual,  # [rows, SIZE], or None
    weight,  # [SIZE]
    normed,  # [rows, SIZE], written
    total,  # [rows, SIZE], written where there is a residual
    eps,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
):
    columns = tl.arange(0, PADDED)
    there = columns < SIZE
    places = tl.program_id(0).to(tl.int64) * SIZE + columns
    wide = tl.load(hidden + places, mask=there, other=0.0).to(tl.float32)
    dtype: tl.constexpr = normed.dtype.element_ty
    if residual is not None:
        added = tl.load(residual + places, mask=there, other=0.0).to(tl.float32)
        rounded = (wide + added).to(dtype)
        tl.store(total + places, rounded, mask=there)
        wide = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / SIZE + eps)
    scaled = (wide * scale).to(dtype).to(tl.float32)
    factor = tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(normed + places, (factor * scaled).to(dtype), mask=there)
