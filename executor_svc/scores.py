"""Log-probabilities for the sequences that ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from common.logprobs import KnownLogprobs, TokenLogprobs
from executor_svc.batch import to_device
from executor_svc.sequence import HeldSequence, Row
from kernels.token_logprobs import token_logprobs


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is wanted of a row of logits: one token, and how many of the likeliest."""

    token_id: int
    num_top: int


def split_logits(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, list[int]]:
    """The logits that tokens are drawn from, and which of `logits` score known tokens; each in the order of the rows.

    The former may be changed and leave the latter as they are, which are many and not copied.
    """
    if not any(row.scored for row in rows):
        return logits, []
    is_drawn = [drawn for row in rows for drawn in (*[False] * len(row.scored), *[True] * row.num_drawn)]
    drawn = [index for index, is_so in enumerate(is_drawn) if is_so]
    known = [index for index, is_so in enumerate(is_drawn) if not is_so]
    return logits[to_device(drawn, np.int64, logits.device)], known


@dataclass(frozen=True, slots=True)
class Asking:
    """The rows that ask how likely their tokens are: their indexes, and their logits as the model gave them."""

    indexes: Sequence[int]
    logits: torch.Tensor


def asking_rows(logits: torch.Tensor, rows: Sequence[Row]) -> Asking:
    """Those of `rows`, whose logits are `logits` [rows, vocab_size] and may be changed afterwards."""
    indexes = [index for index, row in enumerate(rows) if row.sequence.sampling.num_logprobs is not None]
    return Asking(indexes, logits[to_device(indexes, np.int64, logits.device)] if indexes else logits)


def score_drawn(asking: Asking, rows: Sequence[Row], token_ids: Sequence[int]) -> list[TokenLogprobs | None]:
    """Of the tokens that `rows` drew; None for those that do not ask."""
    wanted = [_Wanted(token_ids[index], rows[index].sequence.sampling.num_logprobs or 0) for index in asking.indexes]
    scores: list[TokenLogprobs | None] = [None] * len(rows)
    for index, score in zip(asking.indexes, _score(asking.logits, range(len(wanted)), wanted), strict=True):
        scores[index] = score
    return scores


def score_known(logits: torch.Tensor, indexes: Sequence[int], rows: Sequence[Row]) -> tuple[KnownLogprobs, ...]:
    """Of the known tokens that follow what `rows` compute; of `logits` [N, vocab_size], `indexes` are their scored
    positions, one row after the other."""
    if not indexes:
        return ()
    parts = [part for row in rows if row.scored for part in _parts(row)]
    wanted = [
        _Wanted(token_id, part.num_top)
        for part in parts
        for token_id in part.held.tokens[part.positions.start + 1 : part.positions.stop + 1]
    ]
    found = iter(_score(logits, indexes, wanted))
    return tuple(
        KnownLogprobs(part.held.sequence_id, part.positions.start + 1, tuple(next(found) for _ in part.positions))
        for part in parts
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Positions whose logits score the prompt, or the answer."""

    held: HeldSequence
    positions: range
    num_top: int


def _parts(row: Row) -> list[_Part]:
    held, positions = row.sequence, row.scored
    sampling = held.sampling
    border = min(max(positions.start, held.num_prompt_tokens - 1), positions.stop)
    parts = (
        _Part(held, range(positions.start, border), sampling.num_prompt_logprobs or 0),
        _Part(held, range(border, positions.stop), sampling.num_logprobs or 0),
    )
    return [part for part in parts if part.positions]


def _score(logits: torch.Tensor, indexes: Sequence[int], wanted: Sequence[_Wanted]) -> list[TokenLogprobs]:
    if not wanted:
        return []
    token_ids = to_device([each.token_id for each in wanted], np.int64, logits.device)
    rows = to_device(indexes, np.int64, logits.device)
    found = token_logprobs(logits, rows, token_ids, max(each.num_top for each in wanted))
    columns = (found.logprobs, found.ranks, found.top_ids, found.top_logprobs)
    return [
        TokenLogprobs(logprob, rank, tuple(ids[: each.num_top]), tuple(values[: each.num_top]))
        for each, logprob, rank, ids, values in zip(wanted, *(column.tolist() for column in columns), strict=True)
    ]
