"""Between the loop and the readers of a request: what it gets is taken from its tenant's limits."""

from __future__ import annotations

from common.errors import CitybusError
from scheduler_svc.core.request import SequenceUpdate
from scheduler_svc.output_stream import OutputSink, TextStop
from scheduler_svc.quotas import Seat


class Charged:
    """An `OutputSink` before another one; the `seat` of the request is free once it has ended, however it does."""

    def __init__(self, sink: OutputSink, seat: Seat) -> None:
        self._sink = sink
        self._seat = seat

    def push(self, update: SequenceUpdate) -> TextStop | None:
        self._seat.add_output(len(update.token_ids))
        if update.outcome is not None:
            self._seat.end(update.outcome.num_output_tokens)
        return self._sink.push(update)

    def fail(self, error: CitybusError) -> None:
        self._seat.end()
        self._sink.fail(error)
