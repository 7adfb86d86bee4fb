"""Changing a model's logits before tokens are drawn from them: penalties, bias, bans. Plain torch on every device.

Only what is named is touched, so a row costs what it asks for, and is the same whatever its neighbours ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Penalties:
    """What P rows pay for tokens that they have already.

    int64 `rows` [P] of the logits; float32 `repetition`, `presence` and `frequency` [P]. int64 `lengths` [P] are how
    many of int64 `token_ids` [E] belong to each row, distinct ones; float32 `counts` [E] are how often the answer has
    each, 0 for those that only the prompt has.
    """

    rows: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    lengths: torch.Tensor
    token_ids: torch.Tensor
    counts: torch.Tensor


@dataclass(frozen=True, slots=True)
class Cells:
    """Single logits: int64 `rows` and `token_ids` [E]."""

    rows: torch.Tensor
    token_ids: torch.Tensor


@dataclass(frozen=True, slots=True)
class Adjustments:
    """What is done to the logits of a step, in this order; None where no row asks for it.

    Float32 `biases` [E] are added to `biased` cells, which are distinct; of int64 rows `restricted` [A] only the cells
    `allowed` are left; `banned` cells are not.
    """

    penalties: Penalties | None = None
    biased: Cells | None = None
    biases: torch.Tensor | None = None
    restricted: torch.Tensor | None = None
    allowed: Cells | None = None
    banned: Cells | None = None


def adjust_logits(logits: torch.Tensor, adjustments: Adjustments) -> None:
    """Changes float32 `logits` [R, vocab_size] in place. What cannot be drawn becomes minus infinity."""
    if adjustments.penalties is not None:
        _penalise(logits, adjustments.penalties)
    if adjustments.biased is not None and adjustments.biases is not None:
        cells = adjustments.biased
        logits[cells.rows, cells.token_ids] += adjustments.biases
    if adjustments.restricted is not None and adjustments.allowed is not None:
        cells = adjustments.allowed
        kept = logits[cells.rows, cells.token_ids]
        logits[adjustments.restricted] = -torch.inf
        logits[cells.rows, cells.token_ids] = kept
    if adjustments.banned is not None:
        logits[adjustments.banned.rows, adjustments.banned.token_ids] = -torch.inf


def _penalise(logits: torch.Tensor, penalties: Penalties) -> None:
    """Keskar et al. 2019 (CTRL) for repetition; presence and frequency are taken off as many tokens come."""
    owners = torch.arange(len(penalties.rows), device=logits.device).repeat_interleave(
        penalties.lengths, output_size=len(penalties.token_ids)
    )
    rows = penalties.rows[owners]
    values = logits[rows, penalties.token_ids]
    repetition = penalties.repetition[owners]
    values = torch.where(values > 0, values / repetition, values * repetition)
    counts = penalties.counts
    values -= penalties.frequency[owners] * counts + penalties.presence[owners] * (counts > 0)
    logits[rows, penalties.token_ids] = values
