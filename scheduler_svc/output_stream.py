"""One request's way from the loop to its client: tokens in, text out, bounded memory, one ending.

The loop pushes and never waits; the frontend takes what has gathered since it last asked. A client that reads slowly
thus gets fewer and larger deltas, and holds at most its own answer in memory: four bytes a token, and the text.
"""

from __future__ import annotations

import asyncio
import io
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from common.errors import CitybusError
from scheduler_svc.core.request import FinishReason, Outcome, SequenceUpdate
from scheduler_svc.detokenizer import Detokenizer
from scheduler_svc.stop_texts import StopTexts


@dataclass(frozen=True, slots=True)
class TextStop:
    """A stop text matched: the answer ends with its token number `num_tokens` (counted from 1), which completed it."""

    text: str
    num_tokens: int


class OutputSink(Protocol):
    """Where the loop delivers a sequence. Calls come from the loop's task and return at once."""

    def push(self, update: SequenceUpdate) -> TextStop | None:
        """News of the sequence.

        A `TextStop` says that it is to end; tokens pushed after it are ignored, and only the outcome is waited for.
        """

    def fail(self, error: CitybusError) -> None:
        """The sequence ends without an outcome."""


class OutputObserver(Protocol):
    """Who counts what passes through a stream."""

    def on_tokens(self, count: int) -> None:
        """`count` tokens of the answer have arrived."""

    def on_outcome(self, outcome: Outcome) -> None:
        """The answer is complete."""


class Delta(NamedTuple):
    """What has been added to an answer: `token_ids` from number `first_index` on, and the text they completed.

    `outcome` is set in the last one; `stop_text` then says which stop text ended the answer, if one did. `sample` is
    the number of the answer, where a request has several; `told_as` is that which its reader knows it by, where only
    the best are told.
    """

    first_index: int
    token_ids: Sequence[int]
    text: str
    outcome: Outcome | None = None
    stop_text: str | None = None
    sample: int = 0
    told_as: int | None = None

    @property
    def indexes(self) -> range:
        """Numbers of the tokens."""
        return range(self.first_index, self.first_index + len(self.token_ids))

    @property
    def number(self) -> int:
        """What its reader knows the answer by."""
        return self.sample if self.told_as is None else self.told_as


class OutputStream:
    """An `OutputSink` with a reader's side. Both sides belong to one event loop.

    The reader gets tokens from number `first_index` on, and the text that these complete; `sample` is the number of
    the answer. A stop text counts where it is complete with token number `min_tokens` (counted from 1) or later;
    `include_stop`: it is part of the answer.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        observer: OutputObserver,
        first_index: int = 0,
        sample: int = 0,
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._first_index = first_index
        self._stops = StopTexts(stops, include=include_stop)
        self._min_tokens = min_tokens
        self._observer = observer
        self._num_tokens = 0
        self._token_ids = array("I")
        self._text = io.StringIO()
        self._text_stop: TextStop | None = None
        self._outcome: Outcome | None = None
        self._error: CitybusError | None = None
        self._sample = sample
        self._news = asyncio.Event()
        self._tell: Callable[[], None] = lambda: None

    def push(self, update: SequenceUpdate) -> TextStop | None:
        if self._ended or (self._text_stop and not update.outcome):
            return None
        if not self._text_stop:
            self._observer.on_tokens(self._take(update.token_ids))
        if update.outcome:
            self._end(update.outcome)
        if self._token_ids or self._ended:
            self._have_news()
        return None if self._ended else self._text_stop

    def replay(self, token_ids: Sequence[int]) -> TextStop | None:
        """Take tokens that were counted before; a `TextStop` says that they end the answer."""
        self._take(token_ids)
        if self._token_ids:
            self._have_news()
        return self._text_stop

    def fail(self, error: CitybusError) -> None:
        if not self._ended:
            self._error = error
            self._have_news()

    @property
    def has_news(self) -> bool:
        """Whether `next` would return, or raise, at once."""
        return self._news.is_set()

    def when_news(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever there is something for `next`."""
        self._tell = tell

    async def next(self) -> Delta:
        """What has gathered: at least one token, or the outcome. Waits for it; not to be called after the outcome.

        Raises the error that the sequence failed with, once everything before it is taken.
        """
        await self._news.wait()
        if self._error and not self._token_ids:
            raise self._error
        if not self._ended:
            self._news.clear()
        token_ids, text = self._token_ids, self._text.getvalue()
        self._token_ids, self._text = array("I"), io.StringIO()
        stop_text = self._text_stop.text if self._text_stop else None
        return Delta(self._num_tokens - len(token_ids), token_ids, text, self._outcome, stop_text, self._sample)

    @property
    def _ended(self) -> bool:
        return self._outcome is not None or self._error is not None

    def _have_news(self) -> None:
        self._news.set()
        self._tell()

    def _take(self, token_ids: Sequence[int]) -> int:
        """Add tokens, up to one that completes a stop text; returns how many."""
        before = self._num_tokens
        for token_id in token_ids:
            self._num_tokens += 1
            wanted = self._num_tokens > self._first_index
            if wanted:
                self._token_ids.append(token_id)
            self._write(self._detokenizer.push(token_id), wanted=wanted)
            if self._text_stop:
                break
        return self._num_tokens - before

    def _write(self, text: str, *, wanted: bool = True, counts: bool = True) -> None:
        certain, stop = self._stops.feed(text, counts=counts and self._num_tokens >= self._min_tokens)
        if wanted:
            self._text.write(certain)
        if stop is not None:
            self._text_stop = TextStop(stop, self._num_tokens)

    def _end(self, outcome: Outcome) -> None:
        """Take the ending: a text stop wins over whatever else ended the sequence at the same token or later."""
        if outcome.reason is FinishReason.ERROR:
            self._error = CitybusError(outcome.error or "the request failed")
            return
        if not self._text_stop:
            # Where it is cut off from outside, what stands for a cut character is not what the model has written.
            self._write(self._detokenizer.flush(), counts=outcome.reason in (FinishReason.STOP, FinishReason.LENGTH))
        if self._text_stop:
            stopped_at = self._text_stop.num_tokens
            outcome = replace(
                outcome, reason=FinishReason.STOP, stop_token_id=None, num_output_tokens=stopped_at, error=None
            )
        else:
            self._text.write(self._stops.flush())
        self._outcome = outcome
        self._observer.on_outcome(outcome)
