"""How a step's attention is cut into items of work, and which of them are merged.

A sequence with few new tokens is cut along its keys too, in splits of a fixed size, so that one long sequence can
fill a GPU. Splits end at multiples of that size also where a window begins elsewhere. What a token's result is summed
from, and in which order, follows from its own sequence alone: its length and the number of its new tokens in the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.paged_attention import PagedBatch

SPLIT = 512
"""Keys of a split."""

_SPLIT_UP_TO = 16
"""Sequences with more new tokens than this are not split: they are parallel enough."""

_SHORT_ROWS = 16
_LONG_ROWS = 64
"""Rows of the score matrix of an item: tokens times the query heads of a group."""


@dataclass(frozen=True, slots=True)
class Items:
    """A launch of `programs` for each key-value head, which share the items; an item has `rows` rows.

    Row 0 of int32 `table` [1 + items or more, 8] begins with the number of items. An item is (sequence, first query
    row, tokens, position of the first token, first key, key after the last, is it one split of several). Its tokens
    are consecutive, and so are their query rows. No other keys of the sequence are read.
    """

    table: torch.Tensor
    rows: int
    programs: int


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """What is the same in every layer of a step that has this `window` and `soft_cap`.

    `merges` int32 [1 + merges, 4], row 0 as in `Items`: (first query row, tokens, first item, splits) of a tile whose
    splits are consecutive items of `short`. Splits leave float32 `sums` [items, KV, rows, padded D], and `extremes`
    [2, items, KV, rows]: the highest score, in powers of two, and the sum of weights.
    """

    block_tables: torch.Tensor
    short: Items
    long: Items
    merges: torch.Tensor
    sums: torch.Tensor
    extremes: torch.Tensor
    block_size: int
    window: int | None
    soft_cap: float | None


def plan_attention(
    batch: PagedBatch,
    *,
    block_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int | None = None,
    soft_cap: float | None = None,
) -> TritonPlan:
    """Cut the step into items, as `kernels.paged_attention.plan_attention` says. Nothing here waits for the device."""
    group = _power_of_2(num_heads // num_kv_heads)
    short_rows, long_rows = max(_SHORT_ROWS, group), max(_LONG_ROWS, group)
    short: list[tuple[int, ...]] = []
    long: list[tuple[int, ...]] = []
    merges: list[tuple[int, ...]] = []
    for sequence, length in enumerate(batch.lengths):
        start, end = batch.query_starts[sequence], batch.query_starts[sequence + 1]
        is_short = end - start <= _SPLIT_UP_TO
        tokens = (short_rows if is_short else long_rows) // group
        for row in range(start, end, tokens):
            count = min(tokens, end - row)
            position = length - (end - row)
            keys = position + count
            first = 0 if window is None else max(position + 1 - window, 0)
            if not is_short:
                long.append((sequence, row, count, position, first, keys, 0, 0))
                continue
            splits = range(first // SPLIT * SPLIT, keys, SPLIT)
            is_split = int(len(splits) > 1)
            if is_split:
                merges.append((row, count, len(short), len(splits)))
            short += [
                (sequence, row, count, position, max(key, first), min(key + SPLIT, keys), is_split, 0) for key in splits
            ]
    device = batch.block_tables.device
    partial = (len(short) if merges else 0, num_kv_heads, short_rows)
    return TritonPlan(
        block_tables=batch.block_tables,
        short=Items(_table(short, 8, device), short_rows, len(short)),
        long=Items(_table(long, 8, device), long_rows, len(long)),
        merges=_table(merges, 4, device),
        sums=torch.empty((*partial, padded_head(head_dim)), device=device),
        extremes=torch.empty((2, *partial), device=device),
        block_size=block_size,
        window=window,
        soft_cap=soft_cap,
    )


def fixed_plan(
    like: TritonPlan, *, window: int | None, sequences: int, items: int, table_width: int, programs: int
) -> TritonPlan:
    """A plan of no work, whose tensors stay where they are, for up to `sequences` decodes in up to `items` items.

    `like` is any plan of the same model, of whatever window; splits are stored where those of `like` are if there is
    room for them.
    """
    device = like.block_tables.device
    _, kv_heads, rows, columns = like.sums.shape
    has_room = like.sums.shape[0] >= items

    def table(entries: int, width: int) -> torch.Tensor:
        return torch.zeros(1 + entries, width, dtype=torch.int32, device=device)

    return TritonPlan(
        block_tables=torch.zeros(sequences, table_width, dtype=torch.int64, device=device),
        short=Items(table(items, 8), like.short.rows, programs),
        long=Items(table(0, 8), like.long.rows, 0),
        merges=table(sequences, 4),
        sums=like.sums if has_room else torch.empty(items, kv_heads, rows, columns, device=device),
        extremes=like.extremes if has_room else torch.empty(2, items, kv_heads, rows, device=device),
        block_size=like.block_size,
        window=window,
        soft_cap=like.soft_cap,
    )


def fits(plan: TritonPlan, fixed: TritonPlan) -> bool:
    """May `plan` be loaded into `fixed`, which has its window? It must be of decodes alone, and small enough."""
    return (
        plan.long.programs == 0
        and plan.short.table.shape[0] <= fixed.short.table.shape[0]
        and plan.merges.shape[0] <= fixed.merges.shape[0]
        and plan.block_tables.shape[0] <= fixed.block_tables.shape[0]
        and plan.block_tables.shape[1] <= fixed.block_tables.shape[1]
    )


def load_plan(plan: TritonPlan, fixed: TritonPlan) -> None:
    """Make `fixed` do the work of `plan`, which fits."""
    sequences, width = plan.block_tables.shape
    fixed.block_tables[:sequences, :width].copy_(plan.block_tables)
    fixed.short.table[: len(plan.short.table)].copy_(plan.short.table)
    fixed.merges[: len(plan.merges)].copy_(plan.merges)


def padded_head(head_dim: int) -> int:
    """Columns of a tile that holds a head: matrix units take powers of two from 16."""
    return max(16, _power_of_2(head_dim))


def _power_of_2(number: int) -> int:
    return int(1 << (number - 1).bit_length())


def _table(rows: list[tuple[int, ...]], width: int, device: torch.device) -> torch.Tensor:
    header = (len(rows), *([0] * (width - 1)))
    table = torch.tensor([header, *rows], dtype=torch.int32, pin_memory=device.type == "cuda")
    return table.to(device, non_blocking=True)
