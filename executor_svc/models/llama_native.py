"""The Llama architecture in bfloat16 on a CPU, computed by the native library of `kernels.cpu`."""

from __future__ import annotations

import numpy as np
import torch

from executor_svc.batch import Batch, to_device
from executor_svc.kv_pool import KvPool
from executor_svc.models.rope import Rotations
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.cpu.library import NativeModel, Shape, StepInputs, Weight, window_array


class NativeLlama:
    """Implements `executor_svc.models.registry.Model`; blocks of the pool are in the library's own order.

    `native` is the model without weights, of `native_shape(spec)`.
    """

    def __init__(self, spec: ModelSpec, checkpoint: Checkpoint, native: NativeModel) -> None:
        self.spec = spec
        self._native = native
        self._rotations = Rotations(spec)
        vocabulary = (spec.vocab_size, spec.hidden_size)
        native.set_weight(Weight.EMBEDDING, checkpoint.take("model.embed_tokens.weight", *vocabulary))
        for index in range(spec.num_layers):
            self._load_layer(checkpoint, index)
        native.set_weight(Weight.LAST_NORM, checkpoint.take("model.norm.weight", spec.hidden_size))
        if not spec.tied_embeddings:
            native.set_weight(Weight.HEAD, checkpoint.take("lm_head.weight", *vocabulary))
        self.weights_bytes = native.weights_bytes

    def forward(self, batch: Batch, pool: KvPool) -> torch.Tensor:
        """As `Model.forward`."""
        return self._native.forward(self._inputs(batch), pool.pools)

    def likeliest(self, batch: Batch, pool: KvPool) -> torch.Tensor:
        """As `GreedyModel.likeliest`."""
        return self._native.likeliest(self._inputs(batch), pool.pools)

    def _inputs(self, batch: Batch) -> StepInputs:
        cos, sin = self._rotations.at(batch.positions, max(batch.paged.lengths))
        return StepInputs(
            token_ids=batch.token_ids,
            slots=batch.slots,
            cos=cos,
            sin=sin,
            block_tables=batch.paged.block_tables,
            lengths=to_device(batch.paged.lengths, np.int64, batch.positions.device),
            query_starts=to_device(batch.paged.query_starts, np.int64, batch.positions.device),
            drawing_rows=batch.drawing_rows,
        )

    def _load_layer(self, checkpoint: Checkpoint, index: int) -> None:
        hidden, inner = self.spec.hidden_size, self.spec.intermediate_size
        queries, keys = self.spec.num_heads * self.spec.head_dim, self.spec.num_kv_heads * self.spec.head_dim

        def load(weight: Weight, name: str, *shape: int) -> None:
            self._native.set_weight(weight, checkpoint.take(f"model.layers.{index}.{name}.weight", *shape), index)

        load(Weight.ATTENTION_NORM, "input_layernorm", hidden)
        load(Weight.QUERY, "self_attn.q_proj", queries, hidden)
        load(Weight.KEY, "self_attn.k_proj", keys, hidden)
        load(Weight.VALUE, "self_attn.v_proj", keys, hidden)
        load(Weight.ATTENTION_OUT, "self_attn.o_proj", hidden, queries)
        load(Weight.MLP_NORM, "post_attention_layernorm", hidden)
        load(Weight.GATE, "mlp.gate_proj", inner, hidden)
        load(Weight.UP, "mlp.up_proj", inner, hidden)
        load(Weight.DOWN, "mlp.down_proj", hidden, inner)


def native_shape(spec: ModelSpec) -> Shape:
    """What the library needs to know of a model."""
    return Shape(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        tied_embeddings=spec.tied_embeddings,
        windows=window_array(spec.windows),
        rms_norm_eps=spec.rms_norm_eps,
    )
