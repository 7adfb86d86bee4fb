"""What a process goes on with of a request that the one before it has accepted."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_svc.acceptance import Accepted
from scheduler_svc.charged import Charged
from scheduler_svc.core.request import Request
from scheduler_svc.journal_file import Entry
from scheduler_svc.journal_records import beginning_from_json, outcome_from_json
from scheduler_svc.output_stream import OutputSink
from scheduler_svc.quotas import Quotas
from scheduler_svc.restored import Restored


def restored_of(entries: Sequence[Entry], accepted: Accepted, quotas: Quotas) -> list[Restored]:
    """The sequences that have not ended, of a request that the journal knows by `entries`, one a sample."""
    stops = [sample.restore(entry.tokens) for entry, sample in zip(entries, accepted.ride.samples, strict=True)]
    for entry, sample in zip(entries, accepted.ride.samples, strict=True):
        if entry.outcome is not None:
            sample.ended_before(outcome_from_json(entry.outcome))
    return [
        Restored(
            request,
            entry.tokens,
            _charged(request, sinks, entry, quotas),
            stop,
            beginning_from_json(entry.beginning),
        )
        for entry, stop, (request, sinks) in zip(entries, stops, accepted.served, strict=False)
        if entry.outcome is None
    ]


def _charged(request: Request, sinks: Sequence[OutputSink], entry: Entry, quotas: Quotas) -> list[OutputSink]:
    """The sinks, each with a seat; the prompt is charged once a request."""
    seats = quotas.restored_seats(request.tenant, len(sinks), request.num_sequences)
    for index, seat in enumerate(seats):
        has_prompt = index == 0 and entry.sequence_id == entry.first_id
        seat.restore(len(request.prompt) if has_prompt else 0, len(entry.tokens))
    return [Charged(sink, seat) for sink, seat in zip(sinks, seats, strict=True)]
