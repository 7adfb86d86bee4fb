"""Rotary embedding and the scatter of keys and values in one pass over a token's heads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_HEADS = 16
"""Heads of one token that a program works on."""


def rotate_and_store(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """As `kernels.rotate_and_store.rotate_and_store`; `heads` is contiguous. A token of slot -1 is stored nowhere."""
    tokens, num_heads, head_dim = heads.shape
    kv_heads = key_pool.shape[2]
    queries = heads.new_empty(tokens, num_heads - 2 * kv_heads, head_dim)
    if tokens:
        _rotate_and_store[(tokens, triton.cdiv(num_heads, _HEADS))](
            heads,
            cos,
            sin,
            key_pool,
            value_pool,
            slots,
            queries,
            QUERY_HEADS=num_heads - 2 * kv_heads,
            KV_HEADS=kv_heads,
            HALF=head_dim // 2,
            HALF_PADDED=triton.next_power_of_2(head_dim // 2),
            HEADS=_HEADS,
        )
    return queries


@triton.jit
def _rotate_and_store(
    heads,  # [tokens, QUERY_HEADS + 2 * KV_HEADS, 2 * HALF]
    cos,  # float32 [tokens, HALF]
    sin,  # float32 [tokens, HALF]
    key_pool,  # [slots, KV_HEADS, 2 * HALF], written at the tokens' slots
    value_pool,  # as key_pool
    slots,  # int64 [tokens]
    queries,  # [tokens, QUERY_HEADS, 2 * HALF], written
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    HEADS: tl.constexpr,
):
    SIZE: tl.constexpr = 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    pairs = tl.arange(0, HALF_PADDED)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    there = (pairs < HALF)[None, :] & (head < QUERY_HEADS + 2 * KV_HEADS)[:, None]
    source = heads + (token * (QUERY_HEADS + 2 * KV_HEADS) + head[:, None]) * SIZE + pairs[None, :]
    first = tl.load(source, mask=there, other=0.0)
    second = tl.load(source + HALF, mask=there, other=0.0)
    cosine = tl.load(cos + token * HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
    sine = tl.load(sin + token * HALF + pairs, mask=pairs < HALF, other=0.0)[None, :]
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    turned_first = (wide_first * cosine - wide_second * sine).to(first.dtype)
    turned_second = (wide_second * cosine + wide_first * sine).to(first.dtype)

    is_query = there & (head < QUERY_HEADS)[:, None]
    place = queries + (token * QUERY_HEADS + head[:, None]) * SIZE + pairs[None, :]
    tl.store(place, turned_first, mask=is_query)
    tl.store(place + HALF, turned_second, mask=is_query)

    key_head = head - QUERY_HEADS
    is_key = there & (slot >= 0) & ((key_head >= 0) & (key_head < KV_HEADS))[:, None]
    place = key_pool + (slot * KV_HEADS + key_head[:, None]) * SIZE + pairs[None, :]
    tl.store(place, turned_first, mask=is_key)
    tl.store(place + HALF, turned_second, mask=is_key)

    value_head = key_head - KV_HEADS
    is_value = there & (slot >= 0) & (value_head >= 0)[:, None]
    place = value_pool + (slot * KV_HEADS + value_head[:, None]) * SIZE + pairs[None, :]
    tl.store(place, first, mask=is_value)
    tl.store(place + HALF, second, mask=is_value)
