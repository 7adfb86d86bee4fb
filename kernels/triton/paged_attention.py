"""Attention of new tokens over paged keys and values: prefill chunks and decodes by one kernel.

Shapes: N new tokens; H query heads share KV key-value heads, GROUP = H / KV to each; D head_dim; slots = blocks *
block_size. A tile has ROWS rows, which are tokens times GROUP_PADDED query heads of one key-value head, so that every
key and value is loaded once for all of them; keys are taken KEYS at a time, in order, from a multiple of KEYS on. What
a row does not see leaves its sums as they are, so they do not depend on where its item begins.
Scores are scaled for powers of two. Weights are rounded to the dtype of the queries before values are summed with them;
sums are in float32. Of pools with scales, numbers become the dtype of the queries, which has them all exactly; a key's
scale is a factor of its scores, and a value's of its weights.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.triton.attention_plan import Items, TritonPlan, padded_head

_KEY_TILE_BYTES = 2**14
_LOG2_E = 1.4426950408889634


def paged_attention(
    queries: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    plan: TritonPlan,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `kernels.paged_attention.paged_attention`; the tensors are contiguous."""
    output = torch.empty_like(queries)
    for items in (plan.short, plan.long):
        _launch(items, queries, key_pool, value_pool, scales, output, plan)
    merges = plan.merges.shape[0] - 1
    if merges:
        _, num_heads, head_dim = queries.shape
        kv_heads = key_pool.shape[2]
        _merge[(merges, kv_heads)](
            plan.merges,
            plan.sums,
            plan.extremes,
            output,
            plan.extremes.stride(0),
            KV_HEADS=kv_heads,
            GROUP=num_heads // kv_heads,
            GROUP_PADDED=triton.next_power_of_2(num_heads // kv_heads),
            D=head_dim,
            D_PADDED=padded_head(head_dim),
            ROWS=plan.short.rows,
        )
    return output


def _launch(
    items: Items,
    queries: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    scales: torch.Tensor | None,
    output: torch.Tensor,
    plan: TritonPlan,
) -> None:
    if not items.programs:
        return
    _, num_heads, head_dim = queries.shape
    kv_heads = key_pool.shape[2]
    padded = padded_head(head_dim)
    key_scales, value_scales = (None, None) if scales is None else scales
    scale = head_dim**-0.5 * _LOG2_E
    tile_bytes, is_large = _KEY_TILE_BYTES, items.rows * padded >= 64 * 64
    if scales is not None:  # numbers are converted in registers
        tile_bytes, is_large = tile_bytes // 2, is_large or queries.dtype is torch.float32
    _attend[(items.programs, kv_heads)](
        queries,
        key_pool,
        value_pool,
        key_scales,
        value_scales,
        plan.block_tables,
        items.table,
        output,
        plan.sums,
        plan.extremes,
        plan.block_tables.shape[1],
        plan.extremes.stride(0),
        scale if plan.soft_cap is None else 2 * scale / plan.soft_cap,
        BLOCK_SIZE=plan.block_size,
        KV_HEADS=kv_heads,
        GROUP=num_heads // kv_heads,
        GROUP_PADDED=triton.next_power_of_2(num_heads // kv_heads),
        D=head_dim,
        D_PADDED=padded,
        ROWS=items.rows,
        KEYS=min(max(tile_bytes // (padded * queries.element_size()), 16), 64),
        WINDOW=plan.window or 0,
        SOFT_CAP=(plan.soft_cap or 0.0) * _LOG2_E,
        num_warps=8 if is_large else 4,
        num_stages=2,
    )


@triton.jit(do_not_specialize=["table_width", "num_extremes"])
def _attend(
    queries,  # [N, H, D]
    key_pool,  # [slots, KV_HEADS, D]
    value_pool,  # [slots, KV_HEADS, D]
    key_scales,  # float32 [slots, KV_HEADS], or None
    value_scales,  # as key_scales
    block_tables,  # int64 [sequences, table_width]
    items,  # int32 [1 + items, 8]
    output,  # [N, H, D], written where an item has all its tokens' keys
    sums,  # float32 [items, KV_HEADS, ROWS, D_PADDED], written where it has one split of them
    extremes,  # float32 [2, items, KV_HEADS, ROWS], likewise
    table_width,
    num_extremes,
    scale,  # of scores, for exp2; with a soft cap, of twice their share of it
    BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    SOFT_CAP: tl.constexpr,  # in powers of two; 0.0: none
):
    kv_head = tl.program_id(1)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, D_PADDED)
    for number in range(tl.program_id(0), tl.load(items), tl.num_programs(0)):
        item = items + 8 * (number + 1)
        tokens = tl.load(item + 2)
        token = tl.minimum(rows // GROUP_PADDED, tokens - 1)
        there = (rows // GROUP_PADDED < tokens) & (rows % GROUP_PADDED < GROUP)
        whole = there[:, None] & (columns < D)[None, :]
        head = kv_head * GROUP + rows % GROUP_PADDED
        places = ((tl.load(item + 1) + token).to(tl.int64) * KV_HEADS * GROUP + head)[:, None] * D + columns[None, :]
        query = tl.load(queries + places, mask=whole, other=0.0)
        last_key = tl.load(item + 3) + token
        table = block_tables + tl.load(item).to(tl.int64) * table_width
        start, end = tl.load(item + 4), tl.load(item + 5)
        peak = tl.full((ROWS,), -1.0e30, tl.float32)  # finite: a row may see no key of a split
        weight_sum, total = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS, D_PADDED), tl.float32)
        for first in range(start // KEYS * KEYS if WINDOW else start, end, KEYS):
            key = first + tl.arange(0, KEYS)
            inside = (key >= start) & (key < end) if WINDOW else key < end
            slot = _slots(table, key, inside, BLOCK_SIZE) * KV_HEADS + kv_head
            keys = _rows(key_pool, slot, inside, columns, D, query.dtype)
            scores = _scaled(tl.dot(query, tl.trans(keys), input_precision="ieee") * scale, key_scales, slot, inside)
            scores = _limit(scores, key[None, :], last_key[:, None], WINDOW, SOFT_CAP)
            new_peak = tl.maximum(peak, tl.max(scores, axis=1))
            weights = tl.exp2(scores - new_peak[:, None])
            faded = tl.exp2(peak - new_peak)
            weight_sum = weight_sum * faded + tl.sum(weights, axis=1)
            values = _rows(value_pool, slot, inside, columns, D, query.dtype)
            weights = _scaled(weights, value_scales, slot, inside).to(query.dtype)
            total, peak = tl.dot(weights, values, total * faded[:, None], input_precision="ieee"), new_peak
        if tl.load(item + 6) == 0:
            tl.store(output + places, (total / weight_sum[:, None]).to(query.dtype), mask=whole)
        else:
            part = (number * KV_HEADS + kv_head).to(tl.int64) * ROWS + rows
            _store_part(sums, extremes, part, num_extremes, columns, there, total, peak, weight_sum, D_PADDED)


@triton.jit
def _slots(table, key, inside, BLOCK_SIZE: tl.constexpr):
    return tl.load(table + key // BLOCK_SIZE, mask=inside, other=0) * BLOCK_SIZE + key % BLOCK_SIZE


@triton.jit
def _rows(pool, slot, inside, columns, D: tl.constexpr, DTYPE: tl.constexpr):
    """Keys or values, as numbers of `DTYPE`."""
    found = inside[:, None] & (columns < D)[None, :]
    return tl.load(pool + slot[:, None] * D + columns[None, :], mask=found, other=0.0).to(DTYPE)


@triton.jit
def _scaled(products, scales, slot, inside):
    """Products [rows, keys], times the scale of each key."""
    if scales is not None:
        products *= tl.load(scales + slot, mask=inside, other=0.0)[None, :]
    return products


@triton.jit
def _limit(scores, key, last_key, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr):
    """Scores of the keys that a row sees, in powers of two."""
    if SOFT_CAP > 0:
        scores = SOFT_CAP - 2 * SOFT_CAP / (1 + tl.exp2(scores))  # SOFT_CAP * tanh
    seen = key <= last_key
    if WINDOW:
        seen = seen & (key > last_key - WINDOW)
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def _store_part(sums, extremes, part, num_extremes, columns, there, total, peak, weight_sum, D_PADDED: tl.constexpr):
    tl.store(sums + part[:, None] * D_PADDED + columns[None, :], total, mask=there[:, None])
    tl.store(extremes + part, peak, mask=there)
    tl.store(extremes + num_extremes + part, weight_sum, mask=there)


@triton.jit(do_not_specialize=["num_extremes"])
def _merge(
    merges,  # int32 [1 + merges, 4]
    sums,  # float32 [items, KV_HEADS, ROWS, D_PADDED]
    extremes,  # float32 [2, items, KV_HEADS, ROWS]
    output,  # [N, H, D], written
    num_extremes,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PADDED: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    ROWS: tl.constexpr,
):
    kv_head = tl.program_id(1)
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, D_PADDED)
    for number in range(tl.program_id(0), tl.load(merges), tl.num_programs(0)):
        merge = merges + 4 * (number + 1)
        there = (rows // GROUP_PADDED < tl.load(merge + 1)) & (rows % GROUP_PADDED < GROUP)
        peak = tl.full((ROWS,), -1.0e30, tl.float32)
        weight_sum = tl.zeros((ROWS,), tl.float32)
        total = tl.zeros((ROWS, D_PADDED), tl.float32)
        first = tl.load(merge + 2)
        for item in range(first, first + tl.load(merge + 3)):
            part = (item * KV_HEADS + kv_head).to(tl.int64) * ROWS + rows
            part_peak = tl.load(extremes + part, mask=there, other=0.0)
            part_sum = tl.load(extremes + num_extremes + part, mask=there, other=1.0)
            part_total = tl.load(sums + part[:, None] * D_PADDED + columns[None, :], mask=there[:, None], other=0.0)
            new_peak = tl.maximum(peak, part_peak)
            faded, added = tl.exp2(peak - new_peak), tl.exp2(part_peak - new_peak)
            weight_sum = weight_sum * faded + part_sum * added
            total = total * faded[:, None] + part_total * added[:, None]
            peak = new_peak
        head = kv_head * GROUP + rows % GROUP_PADDED
        places = (tl.load(merge) + rows // GROUP_PADDED).to(tl.int64) * KV_HEADS * GROUP + head
        result = (total / weight_sum[:, None]).to(output.dtype.element_ty)
        tl.store(output + places[:, None] * D + columns[None, :], result, mask=there[:, None] & (columns < D)[None, :])
