"""Attention of new tokens over the paged keys and values of their sequences: prefill chunks and decodes in one call.

Shapes: tokens [N] of sequences [S] in order; H query heads share KV key-value heads, G = H / KV to each; D head_dim;
L keys, padded. A sequence's new tokens are its last ones; each attends to itself and to all before it, or with a
window of W to the last W of these.

How the reference keeps a token's result the same to the last bit in every batch and chunk: keys come in multiples of
`KEYS`, score rows are at least as many as BLAS has its common kernel for, and values are summed in runs of `RUN`,
which begin at multiples of it also where the window does not. Padding, before and after, reads the first key that is
seen, so that nothing outside the sequence or its window, not even a NaN, is ever touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.key_span import RUN, Span, grouped, span_of

_QUERY_TILE = 128
_GATHERED = 2**19
"""Numbers gathered at once, keys or values: as float32 they fit a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """Where the tokens of a step are. `block_tables` int64 [S, any width]; `lengths` [S] tokens of each sequence, the
    new ones included; `query_starts` [S + 1] its first row among the N new tokens, and N."""

    block_tables: torch.Tensor
    lengths: Sequence[int]
    query_starts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Tile:
    """Work done at once: one token of several sequences, or several tokens of one.

    `queries` are rows of the query tensor, one sequence after the other; `slots` rows of the pool seen as
    [slots * KV, D], in the order sequence, head, key. `mask` [sequences, 1, 1 or rows, keys from first_masked on] is
    added to the scores.
    """

    num_sequences: int
    num_rows: int
    queries: torch.Tensor
    slots: torch.Tensor
    first_masked: int
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What is the same in every layer of a step that has this window."""

    tiles: tuple[Tile, ...]
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
) -> AttentionPlan:
    """Cut the step into tiles.

    A token sees the last `window` keys, its own included (None: all). Scores are capped softly, to
    soft_cap * tanh(score / soft_cap), before softmax (None: they are not).
    """
    counts = [end - start for start, end in zip(batch.query_starts, batch.query_starts[1:], strict=False)]
    spans = {index: span_of(batch.lengths[index], 1, window) for index, count in enumerate(counts) if count == 1}
    group = num_heads // num_kv_heads
    budget = _GATHERED // (num_kv_heads * head_dim)
    tiles = [_decode_tile(batch, together, block_size, num_kv_heads, group) for together in grouped(spans, budget)]
    for index, count in enumerate(counts):
        if count > 1:
            for first in range(0, count, _QUERY_TILE):
                last = min(first + _QUERY_TILE, count)
                tiles.append(_prefill_tile(batch, index, first, last, block_size, num_kv_heads, group, window))
    return AttentionPlan(tuple(tiles), soft_cap)


def paged_attention(
    queries: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    plan: AttentionPlan,
    scales: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention output [N, H, D] of `queries` [N, H, D]; the pools are [num_blocks, block_size, KV, D].

    The rows of pools that `quantise` made are multiplied by `scales`, as `store_kv` has them. Scores are scaled by
    D ** -0.5. Computed in float32, returned in the dtype of `queries`.
    """
    output = torch.empty_like(queries)
    key_scales, value_scales = (None, None) if scales is None else scales
    for tile in plan.tiles:
        matrices = tile.num_sequences * key_pool.shape[2]
        keys = _gather(key_pool, key_scales, tile.slots, matrices)
        values = _gather(value_pool, value_scales, tile.slots, matrices)
        output[tile.queries] = _attend(queries[tile.queries], keys, values, tile, plan.soft_cap).to(queries.dtype)
    return output


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: Tile, soft_cap: float | None
) -> torch.Tensor:
    """Attention output of a tile's `queries` [sequences * tokens, H, D] over what `_gather` gave, in float32."""
    _, num_heads, head_dim = queries.shape
    sequences = tile.num_sequences
    kv_heads = len(keys) // sequences
    group = num_heads // kv_heads
    rows = queries.float().mul_(head_dim**-0.5).view(sequences, -1, kv_heads, group, head_dim)
    rows = rows.transpose(1, 2).reshape(sequences * kv_heads, -1, head_dim)
    used = rows.shape[1]
    scores = torch.bmm(F.pad(rows, (0, 0, 0, tile.num_rows - used)), keys.transpose(1, 2))
    if soft_cap is not None:
        scores.div_(soft_cap).tanh_().mul_(soft_cap)
    scores.view(sequences, kv_heads, tile.num_rows, -1)[..., tile.first_masked :].add_(tile.mask)
    weights = scores.softmax(dim=-1)
    sums = torch.bmm(weights[..., :RUN], values[:, :RUN])
    for run in range(RUN, values.shape[1], RUN):
        sums.baddbmm_(weights[..., run : run + RUN], values[:, run : run + RUN])
    output = sums[:, :used].view(sequences, kv_heads, -1, group, head_dim)
    return output.transpose(1, 2).reshape(-1, num_heads, head_dim)


def _gather(pool: torch.Tensor, scales: torch.Tensor | None, slots: torch.Tensor, matrices: int) -> torch.Tensor:
    """Keys or values as float32 [sequences * KV, L, D]."""
    rows = pool.view(-1, pool.shape[-1]).index_select(0, slots).float()
    if scales is not None:
        rows *= scales.view(-1).index_select(0, slots)[:, None]
    return rows.view(matrices, -1, pool.shape[-1])


def _decode_tile(batch: PagedBatch, spans: Mapping[int, Span], block_size: int, kv_heads: int, group: int) -> Tile:
    """One token of each sequence of `spans`, the last of which is the widest."""
    device = batch.block_tables.device
    sequences = list(spans)
    tables = batch.block_tables[torch.tensor(sequences, device=device)]
    slots, hidden = _slots(tables, list(spans.values()), block_size)
    first_masked = min(span.whole for span in spans.values())
    return Tile(
        num_sequences=len(sequences),
        num_rows=_num_rows(len(sequences) * kv_heads, group),
        queries=torch.tensor([batch.query_starts[index] for index in sequences], device=device),
        slots=_per_head(slots, kv_heads),
        first_masked=first_masked,
        mask=_mask(hidden[:, None, None, first_masked:]),
    )


def _prefill_tile(
    batch: PagedBatch,
    sequence: int,
    first: int,
    last: int,
    block_size: int,
    kv_heads: int,
    group: int,
    window: int | None,
) -> Tile:
    """New tokens `first` to `last` - 1 of one sequence."""
    device = batch.block_tables.device
    start, end = batch.query_starts[sequence], batch.query_starts[sequence + 1]
    offset = batch.lengths[sequence] - (end - start)
    span = span_of(offset + last, last - first, window)
    slots, _ = _slots(batch.block_tables[sequence, None], [span], block_size)
    num_rows = _num_rows(kv_heads, (last - first) * group)
    rows = torch.arange(offset + first, offset + last, device=device).repeat_interleave(group)
    rows = F.pad(rows, (0, num_rows - len(rows)), value=offset + last - 1)[:, None]
    first_masked = offset + first if window is None else 0
    keys = torch.arange(span.base + first_masked, span.base + slots.shape[1], device=device)
    hidden = keys > rows if window is None else (keys > rows) | (keys <= rows - window)
    return Tile(
        num_sequences=1,
        num_rows=num_rows,
        queries=torch.arange(start + first, start + last, device=device),
        slots=_per_head(slots, kv_heads),
        first_masked=first_masked,
        mask=_mask(hidden[None, None]),
    )


def _slots(tables: torch.Tensor, spans: Sequence[Span], block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of the keys from each span's base on, [sequences, width of the widest], and which of them are padding."""

    def column(values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), device=tables.device)[:, None]

    width = max(span.width for span in spans)
    positions = column(span.base for span in spans) + torch.arange(width, device=tables.device)
    starts = column(span.start for span in spans)
    hidden = (positions < starts) | (positions >= column(span.end for span in spans))
    positions = torch.where(hidden, starts, positions)
    return tables.gather(1, positions // block_size) * block_size + positions % block_size, hidden


def _per_head(slots: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Rows of the pool seen as [slots * KV, D], in the order sequence, head, key."""
    heads = torch.arange(kv_heads, device=slots.device)[:, None]
    return (slots[:, None] * kv_heads + heads).flatten()


def _mask(hidden: torch.Tensor) -> torch.Tensor:
    return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)


def _num_rows(matrices: int, rows: int) -> int:
    """Rows of a score matrix: BLAS multiplies few rows, and small single matrices, in ways of their own."""
    return max(rows, 4 if matrices > 1 else 16)
