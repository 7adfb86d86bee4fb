"""What a service writes while it runs as a child: lines of JSON from its log, and last words in plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BESIDE = ("event", "level", "service", "timestamp")
_WORTH_SHOWING = (None, "warning", "error", "critical")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line for people; the rest is the log's: `level` is None for a line that did not come from it."""

    level: str | None
    text: str
    event: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

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
    name = str(event["event"])
    values = {key: value for key, value in event.items() if key not in _BESIDE}
    text = " ".join((name, *(f"{key}={value}" for key, value in values.items())))
    return LogLine(str(event.get("level", "info")), text, name, values)
