"""The one place that chooses how operations are computed on a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.copy_blocks import copy_blocks
from kernels.gated_activation import gated_activation
from kernels.linear import linear
from kernels.paged_attention import AttentionPlan, paged_attention, plan_attention
from kernels.rms_norm import rms_norm
from kernels.rotary import rotary
from kernels.sample_tokens import Draws, sample_tokens
from kernels.store_kv import store_kv

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Kernels:
    """Every operation of a model, as the functions of the same names specify them."""

    linear: Callable[[Tensor, Tensor], Tensor]
    rms_norm: Callable[..., tuple[Tensor, Tensor]]
    rotary: Callable[[Tensor, Tensor, Tensor], Tensor]
    gated_activation: Callable[[Tensor], Tensor]
    store_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    copy_blocks: Callable[[Tensor, Tensor, Tensor], None]
    plan_attention: Callable[..., AttentionPlan]
    paged_attention: Callable[[Tensor, Tensor, Tensor, AttentionPlan], Tensor]
    sample_tokens: Callable[[Tensor, Draws], Tensor]


REFERENCE = Kernels(
    linear=linear,
    rms_norm=rms_norm,
    rotary=rotary,
    gated_activation=gated_activation,
    store_kv=store_kv,
    copy_blocks=copy_blocks,
    plan_attention=plan_attention,
    paged_attention=paged_attention,
    sample_tokens=sample_tokens,
)


def kernels_for(device: torch.device) -> Kernels:
    """The operations for `device`: the references in plain torch, so far, for every one.

    On a CPU this also asks MKL for sums that depend neither on the alignment of memory nor on the number of threads
    (its "conditional numerical reproducibility"). MKL reads that once, at its first product in the process.
    """
    if device.type == "cpu":
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    return REFERENCE
