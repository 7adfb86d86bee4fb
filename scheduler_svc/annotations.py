"""What a request is told besides its tokens and their text: log-probabilities, and its prompt."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from common.logprobs import TokenLogprobs
from scheduler_svc.core.request import SequenceUpdate

_MANY_TOKENS = 1024
"""Some milliseconds of work."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request wants to be told; `echo` is the text of its prompt, None where it does not ask for that."""

    logprobs: bool
    prompt_logprobs: bool
    echo: str | None

    @property
    def anything(self) -> bool:
        """Whether it wants more than the answer."""
        return self.logprobs or self.prompt_logprobs or self.echo is not None


@dataclass(frozen=True, slots=True)
class PromptNotes:
    """The prompt, as tokens and text, and what each of its tokens scored (None: not known; empty: not asked for)."""

    token_ids: Sequence[int]
    text: str
    scores: Sequence[TokenLogprobs | None]


class Annotations:
    """Grows with the news of a sequence: eight bytes for each number it is told.

    Log-probabilities come in the order of the tokens, though not always with them: those of tokens that a process
    before this one has told come once their sequence is computed again.
    """

    def __init__(self, asked: Asked, prompt: Sequence[int]) -> None:
        self._asked = asked
        self._num_prompt = len(prompt)
        self._prompt = array("I", prompt if asked.echo is not None or asked.prompt_logprobs else ())
        self._first = 1 if asked.prompt_logprobs else self._num_prompt
        self._columns = _Columns()
        self._final = False
        self._news = asyncio.Event()

    def take(self, update: SequenceUpdate) -> None:
        """News of the sequence."""
        if update.scored is not None and update.scored.first_position == self._first + len(self._columns):
            for score in update.scored.scores:
                self._columns.append(score)
            self._news.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._final = True
        self._news.set()

    def forget(self) -> None:
        """Keep no log-probabilities any more."""
        self._columns = _Columns()

    async def known(self, indexes: range) -> bool:
        """Wait until what belongs to these tokens of the answer is known; False where it never will be."""
        needed = self._num_prompt if self._asked.prompt_logprobs and indexes.start == 0 else 0
        if self._asked.logprobs and indexes:
            needed = self._num_prompt + indexes.stop
        while self._first + len(self._columns) < needed:
            if self._final:
                return False
            self._news.clear()
            await self._news.wait()
        return True

    def of_tokens(self, indexes: range) -> list[TokenLogprobs | None]:
        """Of tokens of the answer; empty where they were not asked for."""
        return [self._score(self._num_prompt + index) for index in indexes] if self._asked.logprobs else []

    def is_large(self, indexes: range) -> bool:
        """Whether what belongs to these tokens of the answer takes long to put into a message."""
        return indexes.start == 0 and self._asked.prompt_logprobs and self._num_prompt > _MANY_TOKENS

    def of_prompt(self) -> PromptNotes | None:
        """Of the prompt; None where nothing was asked for."""
        if not self._prompt:
            return None
        scores = [self._score(position) for position in range(self._num_prompt)] if self._asked.prompt_logprobs else []
        return PromptNotes(self._prompt, self._asked.echo or "", scores)

    def _score(self, position: int) -> TokenLogprobs | None:
        index = position - self._first
        return self._columns[index] if 0 <= index < len(self._columns) else None


class _Columns:
    """Log-probabilities of tokens, packed."""

    def __init__(self) -> None:
        self._logprobs, self._ranks = array("f"), array("I")
        self._ends = array("Q")
        self._top_ids, self._top_logprobs = array("I"), array("f")

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, index: int) -> TokenLogprobs:
        part = slice(self._ends[index - 1] if index else 0, self._ends[index])
        return TokenLogprobs(
            self._logprobs[index], self._ranks[index], tuple(self._top_ids[part]), tuple(self._top_logprobs[part])
        )

    def append(self, score: TokenLogprobs) -> None:
        self._logprobs.append(score.logprob)
        self._ranks.append(score.rank)
        self._top_ids.extend(score.top_ids)
        self._top_logprobs.extend(score.top_logprobs)
        self._ends.append(len(self._top_ids))
