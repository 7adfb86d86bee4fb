"""Takes over what an executor still holds: who runs on where they are, and who has to wait again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from common.resident import ResidentPage, ResidentSequence
from common.step import SealedBlock
from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.request import FinishReason
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Residency:
    """What an executor holds, all pages together; empty for one that holds nothing of ours."""

    last_step: int = 0
    sequences: tuple[ResidentSequence, ...] = ()
    cached: tuple[SealedBlock, ...] = ()

    @classmethod
    def of(cls, pages: Iterable[ResidentPage]) -> Residency:
        """The whole of which `pages` are the parts."""
        parts = list(pages)
        return cls(
            max((page.last_step for page in parts), default=0),
            tuple(sequence for page in parts for sequence in page.sequences),
            tuple(seal for page in parts for seal in page.cached),
        )


@dataclass(frozen=True, slots=True)
class Adoption:
    """What became of a residency.

    `drawn` are the tokens that the executor drew and nobody has heard of, by sequence that goes on; `strangers` are
    resident and not ours; `sealed` are names the executor does not know yet.
    """

    drawn: list[tuple[Sequence, tuple[int, ...]]]
    strangers: list[int]
    sealed: list[SealedBlock]


def adopt(roster: Roster, blocks: BlockManager, held: Residency, now: float) -> Adoption:
    """Seat every waiting sequence that is resident, with its blocks as they are, and take over the prefix cache.

    `blocks` is fresh, and no sequence runs. A resident sequence that contradicts what is known of it counts as a
    stranger: it is computed again.
    """
    drawn, strangers, seated = [], [], []
    for resident in held.sequences:
        sequence = roster.get(resident.sequence_id)
        if sequence is None or not _agrees(sequence, resident, blocks):
            strangers.append(resident.sequence_id)
            continue
        news = resident.token_ids[len(sequence.tokens) :]
        _seat(sequence, resident, len(news), now)
        roster.board(sequence)
        seated.append(sequence)
        drawn.append((sequence, news))
    return Adoption(drawn, strangers, blocks.adopt(seated, held.cached))


def _agrees(sequence: Sequence, resident: ResidentSequence, blocks: BlockManager) -> bool:
    """Whether a resident sequence is this one: the same prompt, tokens and sampling, in as many blocks as it needs, and
    with a token to compute.

    One that has computed past tokens whose log-probabilities are missing does not count: they come of computing.
    """
    known = tuple(sequence.tokens)
    return (
        sequence.search is None  # it starts over: what its beams are worth is known to nobody
        and resident.num_prompt_tokens == sequence.num_prompt_tokens
        and resident.token_ids[: len(known)] == known
        and resident.sampling == sequence.request.sampling
        and len(resident.block_ids) == blocks.blocks_for(resident.num_computed_tokens)
        and 0 < resident.num_computed_tokens <= min(len(resident.token_ids) - 1, sequence.scoring.num_skippable)
    )


def _seat(sequence: Sequence, resident: ResidentSequence, num_unheard: int, now: float) -> None:
    sequence.num_scheduled = resident.num_computed_tokens
    sequence.num_pending = num_unheard
    sequence.block_table = list(resident.block_ids)
    sequence.resident = True
    if sequence.first_scheduled_at is None:
        sequence.first_scheduled_at = now
    sequence.note_reuse(resident.num_reused_tokens)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a sequence ends that cannot go on: the arguments of its outcome."""

    reason: FinishReason
    stop_token_id: int | None = None
    error: str | None = None


def ending_of(sequence: Sequence, fits: int) -> Ending | None:
    """Why a sequence with these tokens does not go on, where at most `fits` tokens can follow its prompt; else None."""
    if sequence.has_stopped:
        return Ending(FinishReason.STOP, stop_token_id=sequence.tokens[-1])
    if sequence.num_output_tokens >= sequence.max_output:
        return Ending(FinishReason.LENGTH)
    if sequence.num_output_tokens >= fits:
        return Ending(
            FinishReason.ERROR,
            error="the executor came back with less memory than this request needs: send it again",
        )
    return None
