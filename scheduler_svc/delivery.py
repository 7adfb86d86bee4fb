"""Brings the news of every sequence to whoever waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from common.errors import CitybusError
from scheduler_svc.core.request import FinishReason, SequenceUpdate
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.journal import Journal
from scheduler_svc.output_stream import OutputSink


class Delivery:
    """One sink for each live sequence; the last news of a sequence ends it, and it ends exactly once.

    All of it is written to `journal` too.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._sinks: dict[int, OutputSink] = {}

    def add(self, sequence_id: int, sinks: Sequence[OutputSink]) -> None:
        """The news of that sequence, and of the further answers of a search, go to `sinks` from now on."""
        self._sinks |= {sequence_id + index: sink for index, sink in enumerate(sinks)}

    def publish(self, core: Scheduler, updates: Iterable[SequenceUpdate]) -> None:
        """Hand out news; a sequence whose text has stopped is ended in the core."""
        for update in _all(updates):
            if update.sequence_id not in self._sinks:
                continue  # its text has stopped at a token before, which came in the same news
            if update.token_ids:
                self._journal.append(update.sequence_id, update.first_index, update.token_ids)
            if update.beginning is not None:
                self._journal.begin(update.sequence_id, update.beginning)
            if update.outcome is None:
                stop = self._sinks[update.sequence_id].push(update)
                if stop is not None:
                    self.publish(core, core.stop(update.sequence_id, stop.num_tokens, time.monotonic()))
                continue
            self._journal.end(update.sequence_id, update.outcome)
            sink = self._sinks.pop(update.sequence_id)
            if update.outcome.reason is FinishReason.ERROR:
                sink.fail(CitybusError(update.outcome.error or "the request failed"))
            else:
                sink.push(update)

    def abandon(self, core: Scheduler, error: CitybusError) -> None:
        """End every live sequence with `error`."""
        for update in _all(core.abandon(str(error), time.monotonic())):
            if update.outcome is not None:
                self._journal.end(update.sequence_id, update.outcome)
            self._sinks.pop(update.sequence_id).fail(error)

    def let_go(self, error: CitybusError) -> None:
        """Tell every reader `error`, and leave the sequences to a successor: they have not ended."""
        for sink in self._sinks.values():
            sink.fail(error)
        self._sinks.clear()


def _all(updates: Iterable[SequenceUpdate]) -> Iterator[SequenceUpdate]:
    """With those that come with others."""
    for update in updates:
        yield update
        yield from update.others
