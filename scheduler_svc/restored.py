"""A request that this process takes over from the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_svc.core.request import Beginning, Request
from scheduler_svc.output_stream import OutputSink, TextStop


@dataclass(frozen=True, slots=True)
class Restored:
    """A live request, the tokens it is known to have, and where its news go: one sink for each of its answers.

    `stop`: its text has stopped already. `beginning`: how it came to its first token, where that is known.
    """

    request: Request
    tokens: tuple[int, ...]
    sinks: Sequence[OutputSink]
    stop: TextStop | None
    beginning: Beginning | None
