"""What the core says, as the texts that a journal keeps."""

from __future__ import annotations

import json
from dataclasses import asdict

from scheduler_svc.core.request import Beginning, FinishReason, Outcome


def outcome_to_json(outcome: Outcome) -> str:
    """An outcome as text."""
    return json.dumps(asdict(outcome) | {"reason": outcome.reason.value})


def outcome_from_json(text: str) -> Outcome:
    """The outcome in a text."""
    fields = json.loads(text)
    return Outcome(**(fields | {"reason": FinishReason(fields["reason"])}))


def beginning_to_json(beginning: Beginning) -> str:
    """A beginning as text."""
    return json.dumps(asdict(beginning))


def beginning_from_json(text: str | None) -> Beginning | None:
    """The beginning in a text, where there is one."""
    return Beginning(**json.loads(text)) if text else None
