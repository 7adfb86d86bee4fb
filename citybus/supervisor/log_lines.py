"""What a service writes while it runs as a child: lines of JSON from its log, and last words in plain text."""

from __future__ import annotations

import json
from dataclasses import dataclass

_BESIDE = ("event", "level", "service", "timestamp")
_WORTH_SHOWING = (None, "warning", "error", "critical")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line for people; `level` is the log's, None for one that did not come from the log."""

    level: str | None
    text: str

    @property
    def is_plain(self) -> bool:
        """Whether it did not come from the log."""
        return self.level is None

    @property
    def matters(self) -> bool:
        """Whether it is worth showing to someone who did not ask for the log."""
        return self.level in _WORTH_SHOWING


def parse(line: str) -> LogLine:
    """The line as people read it: the event, then its values."""
    try:
        event = json.loads(line)
    except ValueError:
        return LogLine(None, line)
    if not isinstance(event, dict) or "event" not in event:
        return LogLine(None, line)
    values = (f"{key}={value}" for key, value in event.items() if key not in _BESIDE)
    return LogLine(str(event.get("level", "info")), " ".join((str(event["event"]), *values)))
