"""Prompt lookup: guesses that a sequence goes on as it did the last time that its last tokens stood there.

Saxena 2023; Leviathan et al. 2023 for the principle: the executor computes the guesses along with the token that is
known, draws at each of them, and keeps those that it has drawn itself. A wrong one costs its computation, and nothing
else.
"""

from __future__ import annotations

from array import array

from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.plan_draft import PlanDraft
from scheduler_svc.core.sequence import Sequence

LONGEST = 3
"""Tokens that have to be the same, at best; where they are new, fewer."""

_ID = array("I").itemsize


class Drafter:
    """Adds drafts of at most `max_tokens` tokens to plans; 0: none.

    The last tokens have to be known: a scheduler that drafts has one plan in flight. A draft takes the room that is
    left in the sequence's last block and in the step, so no block is handed out for it, and nobody waits for it.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._texts: dict[int, bytearray] = {}

    def add_to(self, draft: PlanDraft, blocks: BlockManager) -> None:
        """Guess for everybody who draws and can be guessed for."""
        if not self._max_tokens:
            return
        texts, self._texts = self._texts, {}
        for sequence in draft.known_drawing:
            if sequence.search is not None or not sequence.request.sampling.is_plain:
                continue
            self._texts[sequence.sequence_id] = text = texts.pop(sequence.sequence_id, bytearray())
            text += array("I", sequence.tokens[len(text) // _ID :]).tobytes()
            left = sequence.max_output - sequence.num_output_tokens - 1  # the step draws one token in any case
            most = min(self._max_tokens, left, blocks.room(sequence), draft.tokens)
            if most > 0 and (guess := _continued(sequence, text, most)):
                draft.guess(sequence, guess)


def _continued(sequence: Sequence, text: bytearray, count: int) -> tuple[int, ...]:
    """The next `count` tokens, if the sequence goes on as before; none where its last token is new.

    What followed may reach into what is guessed here: a text that repeats itself goes on repeating itself.
    """
    known = sequence.tokens
    for size in range(min(LONGEST, len(known) - 1), 0, -1):
        if (distance := _distance(text, size)) is not None:
            recent = known[-distance:]
            return tuple(recent[index % distance] for index in range(count))
    return ()


def _distance(text: bytearray, size: int) -> int | None:
    """How many tokens before its end the last `size` tokens stood the last time; None: never."""
    sought, end = text[-size * _ID :], len(text) - _ID
    while (found := text.rfind(sought, 0, end)) >= 0:
        if found % _ID == 0:
            return (len(text) - found) // _ID - size
        end = found + len(sought) - 1  # between two tokens: the bytes agree, the tokens do not
    return None
