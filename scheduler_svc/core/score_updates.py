"""Makes news of the log-probabilities in a result."""

from __future__ import annotations

from collections.abc import Iterable

from common.logprobs import KnownLogprobs, TokenLogprobs
from scheduler_svc.core.request import SequenceUpdate
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.scoring import Scored
from scheduler_svc.core.sequence import Sequence


def known_scores(roster: Roster, parts: Iterable[KnownLogprobs]) -> list[SequenceUpdate]:
    """News of tokens that were known before the step."""
    updates = []
    for part in parts:
        sequence = roster.get(part.sequence_id)
        if sequence is not None and (scored := sequence.scoring.take(part)) is not None:
            updates.append(SequenceUpdate(part.sequence_id, sequence.num_output_tokens, scored=scored))
    return updates


def drawn_score(sequence: Sequence, score: TokenLogprobs) -> Scored | None:
    """News of the token that `sequence` is about to get."""
    return sequence.scoring.take(KnownLogprobs(sequence.sequence_id, len(sequence.tokens), (score,)))
