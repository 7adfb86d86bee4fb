"""The SwiGLU gate."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_COLUMNS = 1024


def gated_activation(gate_up: torch.Tensor) -> torch.Tensor:
    """As `kernels.gated_activation.gated_activation`."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty(rows, size)
    if rows:
        _gate[(rows, triton.cdiv(size, _COLUMNS))](gate_up, output, SIZE=size, COLUMNS=_COLUMNS)
    return output


@triton.jit
def _gate(
    gate_up,  # [rows, 2 * SIZE]
    output,  # [rows, SIZE], written
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = columns < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + columns, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * SIZE + SIZE + columns, mask=there, other=0.0).to(tl.float32)
    dtype: tl.constexpr = output.dtype.element_ty
    opened = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(output + row * SIZE + columns, (opened * up).to(dtype), mask=there)
