"""A step's rows as tensors. It knows neither the model nor the pool's contents."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from executor_svc.constraints import PATIENCE_S
from executor_svc.sequence import Row
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

    def column(values: list[int]) -> torch.Tensor:
        return to_device(values, torch.int64, device)

    starts = list(accumulate((row.num_tokens for row in rows), initial=0))
    return Batch(
        token_ids=column([token for row in rows for token in row.token_ids]),
        positions=column([position for row in rows for position in range(row.start, row.end)]),
        slots=column([slot for row in rows for slot in row.slots(block_size)]),
        drawing_rows=column(
            [
                end + position - row.end
                for row, end in zip(rows, starts[1:], strict=True)
                for position in row.positions_with_logits
            ]
        ),
        paged=PagedBatch(
            block_tables=_tables([row.sequence.block_ids for row in rows], device),
            lengths=[row.end for row in rows],
            query_starts=starts,
        ),
    )


def _tables(tables: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Block tables as int64 [S, longest], the shorter ones filled up with block 0, which is never read for them."""
    width = max((len(table) for table in tables), default=0)
    filled = [[*table, *([0] * (width - len(table)))] for table in tables]
    return to_device(filled, torch.int64, device).view(len(tables), width)


def to_device(
    values: Sequence[float] | Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor of `values` on `device`. A GPU copies it from pinned memory when it comes to it: nobody waits."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def build_draws(rows: Sequence[Row], device: torch.device) -> Draws:
    """How the tokens of `rows` are drawn: the counter is the index of the generated token."""
    samplings = [row.sequence.sampling for row in rows for _ in row.drawn_indexes]

    def numbers(values: list[float]) -> torch.Tensor:
        return to_device(values, torch.float64, device)

    def column(values: list[int]) -> torch.Tensor:
        return to_device(values, torch.int64, device)

    return Draws(
        temperatures=numbers([sampling.temperature for sampling in samplings]),
        top_ks=column([sampling.top_k for sampling in samplings]),
        top_ps=numbers([sampling.top_p for sampling in samplings]),
        min_ps=numbers([sampling.min_p for sampling in samplings]),
        seeds=column([_signed(sampling.seed) for sampling in samplings]),
        counters=column([index for row in rows for index in row.drawn_indexes]),
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
    return to_device([index for index, _ in known], torch.int64, device), stacked.to(device)


def _signed(number: int) -> int:
    """The int64 of the same 64 bits."""
    return number - 2**64 if number >= 2**63 else number
