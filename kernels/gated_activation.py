"""The SwiGLU gate (Shazeer 2020)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def gated_activation(gate_up: torch.Tensor) -> torch.Tensor:
    """SiLU of the first half of each row of `gate_up` [rows, 2 * size], times its second half: [rows, size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
