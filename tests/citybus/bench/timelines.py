"""Records and readings made by hand."""

from __future__ import annotations

from citybus.bench.load import Record
from citybus.bench.server import Reading
from citybus.bench.workload import Call


def record(
    planned: float, *token_times: float, prompt: int = 10, sent: float | None = None, failure: str | None = None
) -> Record:
    """An answer whose tokens came at these times, and that ended with the last."""
    call = Call(planned, prompt, max(1, len(token_times)))
    started = planned if sent is None else sent
    return Record(call, planned, started, token_times, token_times[-1] if token_times else started, failure=failure)


def reading(at: float, running: int = 0, waiting: int = 0, **options: int) -> Reading:
    """A reading; what is left out is 0."""
    names = "tokens_held slots_held slots_reserved seats_reserved prompt_tokens cached_tokens preemptions"
    return Reading(at, "fcfs", running, waiting, **{name: options.get(name, 0) for name in names.split()})
