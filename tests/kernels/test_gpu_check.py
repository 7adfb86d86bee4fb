"""The check of a GPU runs through without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parent.parent.parent


def test_dry_run() -> None:
    command = [sys.executable, "-m", "bench.gpu_check", "--cpu-dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = [json.loads(line) for line in done.stdout.splitlines()]
    counts = {part: sum(finding["part"] == part for finding in findings) for part in {f["part"] for f in findings}}
    assert counts == {"device": 1, "correctness": 25, "ceiling": 1, "time": 10, "model": 1, "end": 1}
    assert findings[-1]["ok"] is True
    assert all(finding["ok"] for finding in findings if finding["part"] == "correctness")
    assert all(finding["microseconds"] > 0 for finding in findings if finding["part"] == "time")
    (model,) = (finding for finding in findings if finding["part"] == "model")
    assert model["output_tokens_per_s"] > 0
