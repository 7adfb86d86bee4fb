"""The physical pool of keys and values: how it is laid out, and how many blocks fit."""

from __future__ import annotations

import torch

from common.errors import StartupError
from executor_svc.models.spec import ModelSpec
from kernels.quantise import GREATEST

MIB = 2**20
_SCALE_BYTES = 4


class KvPool:
    """Keys and values of every layer, in blocks of `block_size` tokens. Block id == page index.

    A pool of a quantised `dtype`, int8 or float8, has scales too.
    """

    def __init__(
        self, spec: ModelSpec, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (2 * spec.num_layers, num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        self.pools = torch.empty(shape, dtype=dtype, device=device)
        """[keys and values of each layer in turn, num_blocks, block_size, kv_heads, head_dim]"""
        self.scales = torch.empty(shape[:-1], dtype=torch.float32, device=device) if dtype in GREATEST else None
        """Float32 [as `pools`, without head_dim]; None where keys and values are stored as they are."""

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that a block has a part of, each [keys and values of each layer, num_blocks, ...]."""
        return (self.pools,) if self.scales is None else (self.pools, self.scales)

    @property
    def num_bytes(self) -> int:
        """Memory of the pool."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Keys and values of a layer, each [num_blocks, block_size, kv_heads, head_dim], and the scales of both."""
        scales = None if self.scales is None else self.scales[2 * index : 2 * index + 2]
        return self.pools[2 * index], self.pools[2 * index + 1], scales


def block_bytes(spec: ModelSpec, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block: keys and values of all layers, with their scales."""
    row = spec.head_dim * dtype.itemsize + (_SCALE_BYTES if dtype in GREATEST else 0)
    return 2 * spec.num_layers * block_size * spec.num_kv_heads * row


def blocks_that_fit(spec: ModelSpec, block_size: int, dtype: torch.dtype, memory: int) -> int:
    """Blocks in `memory` bytes, and no more than a pool can use. Raises `StartupError` where not even one fits."""
    each = block_bytes(spec, block_size, dtype)
    if memory < each:
        raise StartupError(
            f"no block of keys and values fits: {block_size} tokens take {each / MIB:.2f} MiB and there are"
            f" {memory / MIB:.2f} MiB; raise --kv-cache-memory or lower --block-size"
        )
    return memory // each
