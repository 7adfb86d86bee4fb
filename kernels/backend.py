"""The one place that chooses how operations are computed on a device."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels.copy_blocks import copy_blocks
from kernels.gated_activation import gated_activation
from kernels.linear import linear
from kernels.paged_attention import paged_attention, plan_attention
from kernels.rms_norm import rms_norm
from kernels.rotate_and_store import rotate_and_store
from kernels.sample_tokens import Draws, sample_tokens

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Kernels:
    """Every operation of a model, as the functions of the same names specify them; `name` says who computes.

    What `plan_attention` returns only the record's own `paged_attention` understands.
    """

    name: str
    linear: Callable[[Tensor, Tensor], Tensor]
    rms_norm: Callable[..., tuple[Tensor, Tensor]]
    rotate_and_store: Callable[..., Tensor]
    gated_activation: Callable[[Tensor], Tensor]
    copy_blocks: Callable[[Tensor, Tensor, Tensor], None]
    plan_attention: Callable[..., Any]
    paged_attention: Callable[..., Tensor]
    sample_tokens: Callable[[Tensor, Draws], Tensor]


REFERENCE = Kernels(
    name="torch",
    linear=linear,
    rms_norm=rms_norm,
    rotate_and_store=rotate_and_store,
    gated_activation=gated_activation,
    copy_blocks=copy_blocks,
    plan_attention=plan_attention,
    paged_attention=paged_attention,
    sample_tokens=sample_tokens,
)


def kernels_for(device: torch.device) -> Kernels:
    """The operations for `device`: in Triton on a GPU where it is installed, else the references in plain torch.

    On a CPU this also asks MKL for sums that depend neither on the alignment of memory nor on the number of threads
    (its "conditional numerical reproducibility"). MKL reads that once, at its first product in the process.
    """
    if device.type == "cpu":
        os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    elif importlib.util.find_spec("triton"):
        record: Kernels = importlib.import_module("kernels.triton.record").TRITON
        return record
    return REFERENCE
