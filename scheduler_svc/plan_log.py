"""A record of every plan: one JSON object a line, ids and counts only, never tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import structlog

from common.errors import StartupError
from common.step import StepPlan

log = structlog.get_logger()


def plan_recorder(path: Path | None, stack: ExitStack) -> Callable[[StepPlan], None]:
    """What records a plan in the file at `path`, until `stack` is closed; None: nothing does."""
    if path is None:
        return lambda plan: None
    plan_log = PlanLog(path)
    stack.callback(plan_log.close)
    return plan_log.write


class PlanLog:
    """Appends to a file. Raises `StartupError` where it cannot be opened.

    Where it cannot be written later, as on a full disk, the record ends and the service goes on.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file: BinaryIO | None = path.open("ab", buffering=0)
        except OSError as error:
            raise StartupError(f"cannot write the plan log {path}: {error.strerror}") from error

    def write(self, plan: StepPlan) -> None:
        """Add a plan."""
        if self._file is None:
            return
        entry = {
            "step": plan.step,
            "new": [[row.sequence_id, row.num_tokens] for row in plan.new_sequences],
            "scheduled": [[row.sequence_id, row.num_tokens] for row in plan.scheduled],
            "finished": plan.finished_ids,
            "preempted": plan.preempted_ids,
            "copies": len(plan.copies),
            "forks": [[fork.sequence_id, fork.parent_id] for fork in plan.forks],
            "drafts": [[draft.sequence_id, len(draft.token_ids)] for draft in plan.drafts],
        }
        try:
            self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            log.error("plan log ended", step=plan.step, reason=error.strerror)
            self.close()

    def close(self) -> None:
        """Nothing more is written."""
        if self._file is not None:
            self._file.close()
            self._file = None
