"""Which class computes which architecture."""

from __future__ import annotations

import importlib
from typing import Protocol

import torch

from common.errors import StartupError
from executor_svc.batch import Batch
from executor_svc.kv_pool import KvPool
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.backend import Kernels

ARCHITECTURES = {
    "LlamaForCausalLM": "executor_svc.models.llama:Llama",
    "MistralForCausalLM": "executor_svc.models.llama:Llama",
}


class Model(Protocol):
    """A loaded model."""

    spec: ModelSpec
    weights_bytes: int

    def forward(self, batch: Batch, pool: KvPool) -> torch.Tensor:
        """Compute the batch's tokens; returns float32 logits [rows that draw, vocab_size]."""


def load_model(spec: ModelSpec, checkpoint: Checkpoint, kernels: Kernels) -> Model:
    """Build the model and take its weights. Raises `StartupError` for an unknown architecture or a bad checkpoint."""
    where = ARCHITECTURES.get(spec.architecture)
    if where is None:
        supported = ", ".join(ARCHITECTURES)
        raise StartupError(f"architecture {spec.architecture} is not supported; these are: {supported}")
    module, _, name = where.partition(":")
    model: Model = getattr(importlib.import_module(module), name)(spec, checkpoint, kernels)
    return model
