"""Rotary embedding and the scatter of keys and values in one pass over a token's heads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.quantise import GREATEST, LEAST_PEAK

_HEADS = 16
"""Heads of one token that a program works on."""


def rotate_and_store(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    slots: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `kernels.rotate_and_store.rotate_and_store`; `heads` is contiguous. A token of slot -1 is stored nowhere."""
    key_scales, value_scales = (None, None) if scales is None else scales
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
            key_scales,
            value_scales,
            slots,
            queries,
            QUERY_HEADS=num_heads - 2 * kv_heads,
            KV_HEADS=kv_heads,
            HALF=head_dim // 2,
            HALF_PADDED=triton.next_power_of_2(head_dim // 2),
            HEADS=_HEADS,
            GREATEST=GREATEST.get(key_pool.dtype, 0.0),
            LEAST_PEAK=LEAST_PEAK,
        )
    return queries


@triton.jit
def _rotate_and_store(
    heads,  # [tokens, QUERY_HEADS + 2 * KV_HEADS, 2 * HALF]
    cos,  # float32 [tokens, HALF]
    sin,  # float32 [tokens, HALF]
    key_pool,  # [slots, KV_HEADS, 2 * HALF], written at the tokens' slots
    value_pool,  # as key_pool
    key_scales,  # float32 [slots, KV_HEADS], written likewise, or None
    value_scales,  # as key_scales
    slots,  # int64 [tokens]
    queries,  # [tokens, QUERY_HEADS, 2 * HALF], written
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    GREATEST: tl.constexpr,  # number of the pools' dtype; without scales not used
    LEAST_PEAK: tl.constexpr,
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
    is_key = (slot >= 0) & (key_head >= 0) & (key_head < KV_HEADS)
    row = slot * KV_HEADS + key_head
    if key_scales is not None:
        turned_first, turned_second = _quantise(
            turned_first, turned_second, key_scales + row, is_key, key_pool.dtype.element_ty, GREATEST, LEAST_PEAK
        )
    place = key_pool + row[:, None] * SIZE + pairs[None, :]
    tl.store(place, turned_first, mask=there & is_key[:, None])
    tl.store(place + HALF, turned_second, mask=there & is_key[:, None])

    value_head = key_head - KV_HEADS
    is_value = (slot >= 0) & (value_head >= 0) & (value_head < KV_HEADS)
    row = slot * KV_HEADS + value_head
    if value_scales is not None:
        first, second = _quantise(
            first, second, value_scales + row, is_value, value_pool.dtype.element_ty, GREATEST, LEAST_PEAK
        )
    place = value_pool + row[:, None] * SIZE + pairs[None, :]
    tl.store(place, first, mask=there & is_value[:, None])
    tl.store(place + HALF, second, mask=there & is_value[:, None])


@triton.jit
def _quantise(first, second, scales, mask, DTYPE: tl.constexpr, GREATEST: tl.constexpr, LEAST_PEAK: tl.constexpr):
    """As `kernels.quantise.quantise`, of rows in two halves; the scales are stored where `mask` is."""
    first, second = first.to(tl.float32), second.to(tl.float32)
    is_nan = (first != first) | (second != second)  # which a maximum would drop
    sizes = tl.where(is_nan, float("inf"), tl.maximum(tl.abs(first), tl.abs(second)))
    scale = tl.div_rn(tl.maximum(tl.max(sizes, axis=1), LEAST_PEAK), GREATEST)
    tl.store(scales, scale, mask=mask)
    first, second = tl.div_rn(first, scale[:, None]), tl.div_rn(second, scale[:, None])
    return _rounded(first, DTYPE), _rounded(second, DTYPE)


@triton.jit
def _rounded(wide, DTYPE: tl.constexpr):
    """The nearest numbers of int8 or float8e4nv; rounded here, as not every conversion to float8 does that."""
    if DTYPE.is_int():
        rounded = tl.floor(wide + 0.5)
    else:
        bits = wide.to(tl.int32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)  # 3 bits of fraction
        tiny = (wide + 24576.0) - 24576.0  # of which float32 has multiples of 2 ** -9
        rounded = tl.where(tl.abs(wide) < 0.015625, tiny, normal)
    return rounded.to(DTYPE)
