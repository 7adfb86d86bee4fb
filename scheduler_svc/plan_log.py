"""A record of every plan: one JSON object a line, ids and counts only, never tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TextIO

from common.errors import StartupError
from common.step import StepPlan


class PlanLog:
    """Appends to a file. Raises `StartupError` where it cannot be written."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: TextIO = path.open("a", buffering=1, encoding="utf-8")
        except OSError as error:
            raise StartupError(f"cannot write the plan log {path}: {error.strerror}") from error

    def write(self, plan: StepPlan) -> None:
        """Add a plan."""
        entry = {
            "step": plan.step,
            "new": [[row.sequence_id, row.num_tokens] for row in plan.new_sequences],
            "scheduled": [[row.sequence_id, row.num_tokens] for row in plan.scheduled],
            "finished": plan.finished_ids,
            "preempted": plan.preempted_ids,
            "copies": len(plan.copies),
        }
        self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()
