"""How likely a model finds one token a row, and which ones it finds the likeliest. Plain torch on every device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_ROWS_AT_ONCE = 32
"""Bounds the memory beside the logits."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of R rows: float32 `logprobs` [R] of the tokens asked for and their int64 `ranks` [R] (from 1); int64 `top_ids`
    and float32 `top_logprobs` [R, num_top] of the likeliest, of equals the lower id first."""

    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor


def token_logprobs(logits: torch.Tensor, rows: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Logprobs:
    """Log-softmax of the int64 `rows` [R] of float32 `logits` [N, vocab_size], of int64 `token_ids` [R] and of the
    `num_top` likeliest.

    There is at least one row, and each is worked on by itself. A logit that is no finite number counts as the nearest
    one, NaN as the least.
    """
    count = min(num_top, logits.shape[1])
    pieces = [slice(start, start + _ROWS_AT_ONCE) for start in range(0, len(rows), _ROWS_AT_ONCE)]
    parts = [_part(logits[rows[piece]], token_ids[piece], count) for piece in pieces]
    return Logprobs(*map(torch.cat, zip(*parts, strict=True)))


def _part(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> tuple[torch.Tensor, ...]:
    if not all(edge.isfinite().all() for edge in logits.aminmax(dim=-1)):
        logits = logits.nan_to_num(nan=torch.finfo(logits.dtype).min)
    logprobs = logits.log_softmax(-1)
    ids = token_ids[:, None]
    top_ids = _likeliest(logits, num_top) if num_top else ids[:, :0]
    return logprobs.gather(1, ids)[:, 0], _ranks(logits, ids), top_ids, logprobs.gather(1, top_ids)


def _ranks(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    chosen = logits.gather(1, ids)
    columns = torch.arange(logits.shape[1], device=logits.device)
    above = (logits > chosen).count_nonzero(dim=-1)
    return above + ((logits == chosen) & (columns < ids)).count_nonzero(dim=-1) + 1


def _likeliest(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Ids [R, count] in falling order. `topk` leaves open which of equals it takes."""
    values, ids = logits.topk(count)
    least = values[:, -1:]
    crowded = (logits == least).count_nonzero(dim=-1) > (values == least).count_nonzero(dim=-1)
    if crowded.any():
        ids[crowded] = _lowest_ids(logits[crowded], least[crowded], count)
    ids = ids.sort(dim=-1).values
    order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(1, order)


def _lowest_ids(logits: torch.Tensor, least: torch.Tensor, count: int) -> torch.Tensor:
    """Ids [R, count] of what is above `least` [R, 1], and then the first of its equals."""
    above, equal = logits > least, logits == least
    kept = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    return kept.nonzero()[:, 1].view(-1, count)
