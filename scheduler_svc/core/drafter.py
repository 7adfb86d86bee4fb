"""Prompt lookup: guesses that a sequence goes on as it did the last time that its last tokens stood there.

Saxena 2023; Leviathan et al. 2023 for the principle: the executor computes the guesses along with the token that is
known, draws at each of them, and keeps those that it has drawn itself. A wrong one costs its computation, and nothing
else.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from common.step import num_right
from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.plan_draft import PlanDraft
from scheduler_svc.core.roster import Roster

SIZES = (8, 4, 2)
"""Tokens that have to be the same: so many, or else so many. The more they are, the better the guess; what follows a
single one is a poor one.
"""

REACH = 8192
"""Tokens before the end that are searched: a prompt can be made so that each has to be looked at."""

_ID = array("I").itemsize


@dataclass(slots=True)
class _Text:
    """A sequence as it was guessed for last.

    `ids` are the bytes of its tokens, which are searched many times faster than a list; `limit` is the most that are
    worth guessing, as the guesses before tell.
    """

    limit: int
    ids: bytearray = field(default_factory=bytearray)
    guess: tuple[int, ...] = ()

    def follow(self, tokens: list[int]) -> None:
        """Take in what has been drawn since: a guess that was wrong makes the next one shorter, a right one longer."""
        news = tokens[len(self.ids) // _ID :]
        self.ids += array("I", news).tobytes()
        if self.guess:
            right = num_right(self.guess, news)
            self.limit = max(2 * right, self.limit if right == len(self.guess) else 1)
            self.guess = ()

    def continued(self, tokens: list[int], count: int) -> tuple[int, ...]:
        """The next `count` of `tokens`, if they go on as before; none where their end is new.

        What followed may reach into what is guessed here: a text that repeats itself goes on repeating itself.
        """
        for size in SIZES:
            if (distance := self._distance(size)) is not None:
                recent = tokens[-distance:]
                return tuple(recent[index % distance] for index in range(count))
        return ()

    def _distance(self, size: int) -> int | None:
        """How many tokens before its end the last `size` tokens stood the last time; None: never."""
        sought, end = self.ids[-size * _ID :], len(self.ids) - _ID
        begin = max(0, len(self.ids) - REACH * _ID)
        while (found := self.ids.rfind(sought, begin, end)) >= 0:
            if found % _ID == 0:
                return (len(self.ids) - found) // _ID - size
            end = found + len(sought) - 1  # between two tokens: the bytes agree, the tokens do not
        return None


class Drafter:
    """Adds drafts of at most `max_tokens` tokens to plans; 0: none.

    The last tokens have to be known: a scheduler that drafts has one plan in flight. A draft takes the room that is
    left in the sequence's last block and in the step, so no block is handed out for it, and nobody waits for it.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._texts: dict[int, _Text] = {}

    def add_to(self, draft: PlanDraft, blocks: BlockManager, roster: Roster) -> None:
        """Guess for everybody who draws and can be guessed for. Who is left out of a step keeps their text."""
        if not self._max_tokens:
            return
        self._texts = {key: text for key, text in self._texts.items() if roster.get(key) is not None}
        for sequence in draft.known_drawing:
            text = self._texts.get(sequence.sequence_id)
            if text is None:
                if sequence.search is not None or not sequence.request.sampling.is_plain:
                    continue
                text = _Text(self._max_tokens)
            self._texts[sequence.sequence_id] = text
            text.follow(sequence.tokens)
            left = sequence.max_output - sequence.num_output_tokens - 1  # the step draws one token in any case
            most = min(self._max_tokens, text.limit, left, blocks.room(sequence), draft.tokens)
            text.guess = text.continued(sequence.tokens, most) if most > 0 else ()
            if text.guess:
                draft.guess(sequence, text.guess)
