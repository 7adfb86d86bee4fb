"""Making tokens impossible by a bit mask."""

from __future__ import annotations

import numpy as np
import torch

_BYTES = np.arange(256, dtype=np.uint8)[:, None]
_LIMITS = np.where(np.unpackbits(_BYTES, axis=1, bitorder="little"), np.float32(np.inf), np.float32(-np.inf))
"""Of the 8 tokens that a byte of a mask is about, the most that the logits may be."""


def allow_tokens(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """In place: the float32 `logits` [R, vocab_size] of `rows` [M] become minus infinity where their mask has no bit.

    `rows` are int64, each at most once. `masks` are int32 [M, ceil(vocab_size / 32)]; token t is bit t % 32, counted
    from the lowest, of word t // 32. Other rows are not touched. A NaN, which is as impossible, may stay one.
    """
    (allow_on_cpu if logits.device.type == "cpu" else allow_by_torch)(logits, rows, masks)


def allow_by_torch(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """As `allow_tokens`, on any device."""
    bits = torch.arange(32, dtype=torch.int32, device=masks.device)
    allowed = ((masks.unsqueeze(-1) >> bits) & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits.index_copy_(0, rows, logits[rows].masked_fill_(~allowed, -torch.inf))


def allow_on_cpu(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """As `allow_tokens`, in one thread: torch shares such small work among several, which then wait for busy cores."""
    numbers, packed = logits.numpy(), masks.numpy().view(np.uint8)
    for index, row in enumerate(rows.tolist()):
        limits = _LIMITS.take(packed[index], axis=0).reshape(-1)[: logits.shape[1]]
        np.minimum(numbers[row], limits, out=numbers[row])
