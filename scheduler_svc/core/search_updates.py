"""How a beam search goes on, and what is told of it: nothing before its end, then its best answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from common.logprobs import TokenLogprobs
from common.step import SampledToken
from scheduler_svc.core.beams import BeamSearch
from scheduler_svc.core.request import FinishReason, Outcome, SequenceUpdate, WrongResult
from scheduler_svc.core.sequence import Sequence


def advance(sequence: Sequence, search: BeamSearch, drawn: Iterable[SampledToken], now: float) -> int:
    """A step has said what continues each beam; returns how many tokens are to be told now.

    Raises `WrongResult` where it has not.
    """
    sequence.num_pending = 0
    sequence.note_token(now)
    search.advance([_likeliest(token) for token in drawn], sequence.max_output)
    return sum(len(answer.tokens) for answer in search.told)


def _likeliest(token: SampledToken) -> TokenLogprobs:
    if token.logprobs is None:
        raise WrongResult(f"sequence {token.sequence_id} is a beam, and nothing says what continues it")
    return token.logprobs


def last_update(search: BeamSearch, sequence_id: int, outcome: Outcome) -> SequenceUpdate:
    """The news of a search that has ended: its best answers, or that there are none. `outcome` is what all share."""
    outcomes = [outcome] * search.params.num_answers
    tokens: list[tuple[int, ...]] = [()] * search.params.num_answers
    if search.is_over:
        tokens = [answer.tokens for answer in search.told]
        outcomes = [
            replace(
                outcome,
                reason=FinishReason.LENGTH if answer.stop_token_id is None else FinishReason.STOP,
                num_output_tokens=len(answer.tokens),
                stop_token_id=answer.stop_token_id,
                score=answer.score,
            )
            for answer in search.told
        ]
    updates = [
        SequenceUpdate(sequence_id + index, 0, ids, how)
        for index, (ids, how) in enumerate(zip(tokens, outcomes, strict=True))
    ]
    return updates[0]._replace(others=tuple(updates[1:]))
