"""Writing new keys and values into the paged pool."""

from __future__ import annotations

import torch

from kernels.quantise import quantise


def store_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slots: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> None:
    """Scatter `keys` and `values` [tokens, kv_heads, head_dim] into their slots, in place.

    The pools are [num_blocks, block_size, kv_heads, head_dim]; slot number s, from int64 `slots` [tokens], is place
    s % block_size of block s // block_size. Slots must be distinct. Into pools that have `scales`, float32
    [keys and values, num_blocks, block_size, kv_heads], goes what `quantise` gives.
    """
    if scales is None:
        _scatter(keys, key_pool, slots)
        _scatter(values, value_pool, slots)
        return
    for rows, pool, of_pool in ((keys, key_pool, scales[0]), (values, value_pool, scales[1])):
        numbers, of_rows = quantise(rows, pool.dtype)
        _scatter(numbers.view(torch.int8), pool.view(torch.int8), slots)  # torch does not scatter float8
        _scatter(of_rows, of_pool, slots)


def _scatter(rows: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor) -> None:
    pool.view(-1, *rows.shape[1:]).index_copy_(0, slots, rows)
