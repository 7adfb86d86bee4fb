"""The record of plans, and what becomes of it on a full disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from common.errors import StartupError
from common.step import BlockCopy, Draft, NewSequence, Sampling, ScheduledSequence, StepPlan
from scheduler_svc.plan_log import PlanLog

FULL = Path("/dev/full")


def test_a_plan_is_a_line_of_ids_and_counts_and_runs_are_appended(tmp_path: Path) -> None:
    new = NewSequence(7, (5, 6, 5), 3, 0, 3, (0,), Sampling())
    plan = StepPlan(
        1, 9, (new,), (ScheduledSequence(3, 1, (4,)),), (1, 2), (5,), (BlockCopy(0, 1),), drafts=(Draft(3, (8, 9)),)
    )
    for _ in range(2):
        record = PlanLog(tmp_path / "plans")
        record.write(plan)
        record.close()
    lines = (tmp_path / "plans").read_text(encoding="utf-8").splitlines()
    entry = {"step": 9, "new": [[7, 3]], "scheduled": [[3, 1]], "finished": [1, 2], "preempted": [5], "copies": 1}
    entry |= {"forks": [], "drafts": [[3, 2]]}
    assert [json.loads(line) for line in lines] == [entry, entry]


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_ends_the_record_and_nothing_else() -> None:
    record = PlanLog(FULL)
    with capture_logs() as lines:
        for step in (1, 2, 3):
            record.write(StepPlan(1, step))
        record.close()
    assert lines == [
        {"event": "plan log ended", "log_level": "error", "step": 1, "reason": "No space left on device"},
    ]


def test_a_file_that_cannot_be_opened_is_said_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"cannot write the plan log .*: Is a directory"):
        PlanLog(tmp_path)
