"""The Llama architecture (Touvron et al. 2023), with grouped queries; Mistral's layers differ by their windows alone.

Shapes: N tokens of a step, R rows that draw, H query heads, KV key-value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from executor_svc.batch import Batch
from executor_svc.kv_pool import KvPool
from executor_svc.models.rope import inverse_frequencies
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.backend import Kernels

AttentionPlans = Mapping[int | None, Any]
"""A step's attention plan for each window that layers of the model have."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of a decoder layer; queries, keys and values are one matrix, and so are gate and up. A token sees the
    last `window` keys (None: all)."""

    window: int | None
    attention_norm: torch.Tensor
    qkv: torch.Tensor
    attention_out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """What is the same in every layer: the batch, its angles (float32 [N, D / 2]) and its attention plans."""

    batch: Batch
    cos: torch.Tensor
    sin: torch.Tensor
    attention: AttentionPlans


class Llama:
    """Implements `executor_svc.models.registry.Model`."""

    def __init__(self, spec: ModelSpec, checkpoint: Checkpoint, kernels: Kernels) -> None:
        self.spec = spec
        self._kernels = kernels
        self._embedding = checkpoint.take("model.embed_tokens.weight", spec.vocab_size, spec.hidden_size)
        self._layers = [_load_layer(spec, checkpoint, index) for index in range(spec.num_layers)]
        self._norm = checkpoint.take("model.norm.weight", spec.hidden_size)
        self._head = self._embedding
        if not spec.tied_embeddings:
            self._head = checkpoint.take("lm_head.weight", spec.vocab_size, spec.hidden_size)
        self._frequencies = inverse_frequencies(spec).to(self._embedding.device)
        self.weights_bytes = checkpoint.taken_bytes

    def forward(self, batch: Batch, pool: KvPool) -> torch.Tensor:
        """As `Model.forward`."""
        return self.compute(batch, self.plan_attention(batch, pool.block_size), pool)

    def plan_attention(self, batch: Batch, block_size: int) -> AttentionPlans:
        """The part of a forward pass that the host does."""
        return {
            window: self._kernels.plan_attention(
                batch.paged,
                block_size=block_size,
                num_heads=self.spec.num_heads,
                num_kv_heads=self.spec.num_kv_heads,
                head_dim=self.spec.head_dim,
                window=window,
            )
            for window in dict.fromkeys(self.spec.windows)
        }

    def compute(self, batch: Batch, attention: AttentionPlans, pool: KvPool) -> torch.Tensor:
        """The rest of it, which reads nothing but tensors."""
        angles = batch.positions[:, None].float() * self._frequencies
        step = Step(batch, angles.cos(), angles.sin(), attention)
        hidden = F.embedding(batch.token_ids, self._embedding)
        residual: torch.Tensor | None = None
        for index, layer in enumerate(self._layers):
            normed, residual = self._kernels.rms_norm(hidden, layer.attention_norm, self.spec.rms_norm_eps, residual)
            hidden = self._attention(layer, normed, step, *pool.layer(index))
            normed, residual = self._kernels.rms_norm(hidden, layer.mlp_norm, self.spec.rms_norm_eps, residual)
            gated = self._kernels.gated_activation(self._kernels.linear(normed, layer.gate_up))
            hidden = self._kernels.linear(gated, layer.down)
        rows = batch.drawing_rows
        before = None if residual is None else residual[rows]
        normed, _ = self._kernels.rms_norm(hidden[rows], self._norm, self.spec.rms_norm_eps, before)
        return self._kernels.linear(normed, self._head).float()

    def _attention(
        self,
        layer: Layer,
        normed: torch.Tensor,
        step: Step,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        scales: torch.Tensor | None,
    ) -> torch.Tensor:
        heads = self._kernels.linear(normed, layer.qkv).view(len(normed), -1, self.spec.head_dim)
        queries = self._kernels.rotate_and_store(
            heads, step.cos, step.sin, key_pool, value_pool, step.batch.slots, scales
        )
        output = self._kernels.paged_attention(queries, key_pool, value_pool, step.attention[layer.window], scales)
        return self._kernels.linear(output.flatten(1), layer.attention_out)


def _load_layer(spec: ModelSpec, checkpoint: Checkpoint, index: int) -> Layer:
    prefix = f"model.layers.{index}."
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim

    def matrix(name: str, size_out: int, size_in: int) -> torch.Tensor:
        return checkpoint.take(f"{prefix}{name}.weight", size_out, size_in)

    return Layer(
        window=spec.windows[index],
        attention_norm=checkpoint.take(f"{prefix}input_layernorm.weight", hidden),
        qkv=torch.cat(
            [
                matrix("self_attn.q_proj", queries, hidden),
                matrix("self_attn.k_proj", keys, hidden),
                matrix("self_attn.v_proj", keys, hidden),
            ]
        ),
        attention_out=matrix("self_attn.o_proj", hidden, queries),
        mlp_norm=checkpoint.take(f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=torch.cat([matrix("mlp.gate_proj", inner, hidden), matrix("mlp.up_proj", inner, hidden)]),
        down=matrix("mlp.down_proj", hidden, inner),
    )
