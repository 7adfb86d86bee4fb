"""The record of operations in Triton."""

from __future__ import annotations

import torch.nn.functional as F

from kernels.backend import Kernels
from kernels.copy_blocks import copy_blocks
from kernels.triton.attention_plan import plan_attention
from kernels.triton.gated_activation import gated_activation
from kernels.triton.paged_attention import paged_attention
from kernels.triton.rms_norm import rms_norm
from kernels.triton.rotate_and_store import rotate_and_store
from kernels.triton.sample_tokens import sample_tokens

TRITON = Kernels(
    name="triton",
    linear=F.linear,  # the vendor's library
    rms_norm=rms_norm,
    gated_activation=gated_activation,
    rotate_and_store=rotate_and_store,
    copy_blocks=copy_blocks,  # two copies by torch's own kernels, as fast as memory is
    plan_attention=plan_attention,
    paged_attention=paged_attention,
    sample_tokens=sample_tokens,
)
