"""What happens between the projections of attention and attention itself."""

from __future__ import annotations

import torch

from kernels.rotary import rotary
from kernels.store_kv import store_kv


def rotate_and_store(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slots: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Turn queries and keys as `rotary` does, and put keys and values where `store_kv` does.

    `heads` [tokens, H + 2 KV, D] are the query heads, the key heads and the value heads of each token; KV is that of
    the pools [num_blocks, block_size, KV, D]. Returns the turned queries [tokens, H, D].
    """
    kv_heads = key_pool.shape[2]
    num_turned = heads.shape[1] - kv_heads
    turned = rotary(heads[:, :num_turned], cos, sin)
    num_queries = num_turned - kv_heads
    store_kv(turned[:, num_queries:], heads[:, num_turned:], key_pool, value_pool, slots, scales)
    return turned[:, :num_queries]
