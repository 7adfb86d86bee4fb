"""Copying whole blocks inside the paged pool."""

from __future__ import annotations

import torch


def copy_blocks(pools: torch.Tensor, sources: torch.Tensor, destinations: torch.Tensor) -> None:
    """Copy block `sources[i]` to block `destinations[i]` in every one of `pools` [pools, num_blocks, ...], in place.

    All sources are read before any destination is written; destinations must be distinct.
    """
    if pools.dtype.itemsize == 1:
        pools = pools.view(torch.int8)  # torch does not scatter float8
    pools.index_copy_(1, destinations, pools.index_select(1, sources))
