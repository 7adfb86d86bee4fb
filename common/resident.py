"""What an executor holds, as it tells a scheduler that takes over."""

from __future__ import annotations

from dataclasses import dataclass

from common.step import Sampling, SealedBlock


@dataclass(frozen=True, slots=True)
class ResidentSequence:
    """A sequence an executor holds, the last drawn token included in `token_ids`.

    `num_reused_tokens` leading ones did not have to be computed when it came: its blocks held them already.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: tuple[int, ...]
    sampling: Sampling
    num_reused_tokens: int


@dataclass(frozen=True, slots=True)
class ResidentPage:
    """One page of what an executor holds, for a scheduler that takes over. `last_step` 0: no step was executed."""

    epoch: bytes
    last_step: int
    sequences: tuple[ResidentSequence, ...] = ()
    cached: tuple[SealedBlock, ...] = ()
