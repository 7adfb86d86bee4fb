"""A step's rows as tensors. It knows neither the model nor the pool's contents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from executor_svc.constraints import PATIENCE_S
from executor_svc.sequence import UNKNOWN_TOKEN, BlockIds, Row
from kernels.paged_attention import PagedBatch
from kernels.sample_tokens import Draws


@dataclass(frozen=True, slots=True)
class Batch:
    """N tokens of S rows, one row after the other; all tensors are int64.

    `token_ids`, `positions` and `slots` (where the token's key and value go) are [N]. `drawing_rows` are the tokens,
    of the N, whose logits are wanted, in rising order: those that score known tokens, and of every row that has all its
    tokens computed the last one, which is drawn from, and with a draft those before its guesses too.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    drawing_rows: torch.Tensor
    paged: PagedBatch


def build_batch(rows: Sequence[Row], block_size: int, device: torch.device) -> Batch:
    """The inputs of a forward pass over `rows`."""

    def column(values: ArrayLike) -> torch.Tensor:
        return to_device(values, np.int64, device)

    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    drawing_rows: list[int] = []
    starts = [0]
    for row in rows:
        held, first, stop, draws, draft = row
        if draws and stop - first == 1:  # a decode, as most rows are: it has no draft, and nothing known to score
            token_ids.append(held.tokens[first])
            positions.append(first)
            slots.append(held.block_ids[first // block_size] * block_size + first % block_size)
            drawing_rows.append(starts[-1])
        else:
            token_ids += [*held.tokens[first:stop], *draft]
            positions += range(first, stop)
            slots += row.slots(block_size)
            shift, scored = len(positions) - stop, row.scored
            drawing_rows += range(shift + scored.start, shift + scored.stop)
            drawing_rows += range(shift + stop - row.num_drawn, shift + stop)
        starts.append(len(positions))
    return Batch(
        token_ids=column(token_ids),
        positions=column(positions),
        slots=column(slots),
        drawing_rows=column(drawing_rows),
        paged=PagedBatch(
            block_tables=column(_tables([row.sequence.block_ids for row in rows])),
            lengths=[row.end for row in rows],
            query_starts=starts,
        ),
    )


def take_drawn(batch: Batch, rows: Sequence[Row], drawing: Sequence[Row], drawn: torch.Tensor) -> None:
    """Put in the tokens of `batch`, whose rows are `rows`, that the host does not know: `drawn` has those of `drawing`,
    int64 [rows that draw]."""
    places = {row.sequence.sequence_id: place for place, row in enumerate(drawing)}
    lasts = [start - 1 for start in batch.paged.query_starts[1:]]
    pairs = [
        (last, places[row.sequence.sequence_id])
        for last, row in zip(lasts, rows, strict=True)
        if row.sequence.tokens[row.end - 1] == UNKNOWN_TOKEN
    ]
    if pairs:
        tokens, sources = to_device(pairs, np.int64, drawn.device).unbind(1)
        batch.token_ids.index_copy_(0, tokens, drawn.index_select(0, sources))


def _tables(tables: Sequence[BlockIds]) -> NDArray[np.int64]:
    """Block tables as one [S, longest], the shorter ones filled up with block 0, which is never read for them."""
    width = max(map(len, tables)) * tables[0].itemsize
    filled = bytearray().join([table.tobytes().ljust(width, b"\0") for table in tables])
    return np.frombuffer(filled, np.int64).reshape(len(tables), -1)


def to_device(values: ArrayLike, dtype: type[np.generic], device: torch.device) -> torch.Tensor:
    """A tensor of `values` on `device`. A GPU copies it from pinned memory when it comes to it: nobody waits."""
    tensor = torch.from_numpy(np.asarray(values, dtype))  # torch reads lists slowly, number by number
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def build_draws(rows: Sequence[Row], device: torch.device) -> Draws:
    """How the tokens of `rows` are drawn: the counter is the index of the generated token."""
    drawn = [(row.sequence.sampling, index) for row in rows for index in row.drawn_indexes]
    samplings = [sampling for sampling, _ in drawn]

    def numbers(values: list[float]) -> torch.Tensor:
        return to_device(values, np.float64, device)

    def column(values: ArrayLike) -> torch.Tensor:
        return to_device(values, np.int64, device)

    return Draws(
        temperatures=numbers([sampling.temperature for sampling in samplings]),
        top_ks=column([sampling.top_k for sampling in samplings]),
        top_ps=numbers([sampling.top_p for sampling in samplings]),
        min_ps=numbers([sampling.min_p for sampling in samplings]),
        seeds=column(np.array([sampling.seed for sampling in samplings], np.uint64).view(np.int64)),
        counters=column([index for _, index in drawn]),
    )


def build_masks(rows: Sequence[Row], device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Which of `rows` have a grammar, and what it allows them: as `kernels.allow_tokens` takes it; None where none has.

    Waits for masks that are not computed yet, the same time for all. A row whose answer cannot go on has none.
    """
    until = time.monotonic() + PATIENCE_S
    constraints = [(index, row.sequence.constraint) for index, row in enumerate(rows)]
    masks = [(index, constraint.mask(until)) for index, constraint in constraints if constraint is not None]
    known = [(index, mask) for index, mask in masks if mask is not None]
    if not known:
        return None
    stacked = torch.from_numpy(np.stack([mask for _, mask in known]).view(np.int32))
    return to_device([index for index, _ in known], np.int64, device), stacked.to(device)
