"""Which class computes which architecture."""

from __future__ import annotations

import importlib
from typing import Protocol, runtime_checkable

import torch

from common.errors import StartupError
from executor_svc.batch import Batch
from executor_svc.kv_pool import KvPool
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.backend import Kernels
from kernels.cpu.library import NativeModel

ARCHITECTURES = {
    "LlamaForCausalLM": "executor_svc.models.llama:Llama",
    "MistralForCausalLM": "executor_svc.models.llama:Llama",
}

NATIVE = {
    "LlamaForCausalLM": "executor_svc.models.llama_native:NativeLlama",
    "MistralForCausalLM": "executor_svc.models.llama_native:NativeLlama",
}
"""Those that the native library of `kernels.cpu` computes too."""


class Model(Protocol):
    """A loaded model."""

    spec: ModelSpec
    weights_bytes: int

    def forward(self, batch: Batch, pool: KvPool) -> torch.Tensor:
        """Compute the batch's tokens; returns float32 logits [rows that draw, vocab_size]."""


@runtime_checkable
class GreedyModel(Model, Protocol):
    """A model that can tell what is likeliest without writing all the logits."""

    def likeliest(self, batch: Batch, pool: KvPool) -> torch.Tensor:
        """Compute the batch's tokens; returns what greedy draws from `forward`'s logits give, int64 [rows]."""


def load_model(spec: ModelSpec, checkpoint: Checkpoint, kernels: Kernels, native: NativeModel | None = None) -> Model:
    """Build the model and take its weights: into `native` where that is given, an architecture of `NATIVE` then.

    Raises `StartupError` for an unknown architecture or a bad checkpoint.
    """
    where = (ARCHITECTURES if native is None else NATIVE).get(spec.architecture)
    if where is None:
        supported = ", ".join(ARCHITECTURES)
        raise StartupError(f"architecture {spec.architecture} is not supported; these are: {supported}")
    module, _, name = where.partition(":")
    make = getattr(importlib.import_module(module), name)
    model: Model = make(spec, checkpoint, kernels if native is None else native)
    return model
