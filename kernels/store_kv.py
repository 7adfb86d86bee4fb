"""Writing new keys and values into the paged pool."""

from __future__ import annotations

import torch


def store_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Scatter `keys` and `values` [tokens, kv_heads, head_dim] into their slots, in place.

    The pools are [num_blocks, block_size, kv_heads, head_dim]; slot number s, from int64 `slots` [tokens], is place
    s % block_size of block s // block_size. Slots must be distinct.
    """
    key_pool.view(-1, *keys.shape[1:]).index_copy_(0, slots, keys)
    value_pool.view(-1, *values.shape[1:]).index_copy_(0, slots, values)
