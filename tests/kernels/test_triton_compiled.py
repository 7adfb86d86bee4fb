"""The kernels compile for a GPU that is not there, and take no more of it than docs/kernels.md says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from bench.kernel_table import SHAPES, TABLE, TARGETS, Usage, faults, recorded, render

ROOT = Path(__file__).resolve().parent.parent.parent
SHAPE = "Llama 8B, bfloat16"


def check(shape: str, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.kernel_table", "--check", "--target", "sm_90", "--shape", shape]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_kernels_of_a_step_take_no_more_than_recorded(tmp_path: Path) -> None:
    done = check(SHAPE, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    launches = re.search(r"(\d+) launches compiled", done.stdout)
    assert launches is not None and int(launches[1]) == 24


def test_the_page_has_every_target_and_no_spills_where_decodes_run() -> None:
    page = TABLE.read_text(encoding="utf-8")
    known = recorded(page)
    assert {key[:2] for key in known} == {(target, shape.name) for target in TARGETS for shape in SHAPES}
    assert faults(known, page) == []


def test_what_is_worse_is_found() -> None:
    page = render({("sm_90", "m", "gate"): Usage(32, 0, 64), ("sm_90", "m", "attend, 64 rows"): Usage(99, 0, 0)})
    assert faults({("sm_90", "m", "gate"): Usage(30, 0, 64)}, page) == []
    found = faults(
        {
            ("sm_90", "m", "gate"): Usage(33, 8, 65),
            ("sm_90", "m", "attend, 64 rows"): Usage(98, 16, 0),
            ("sm_90", "m", "merge"): Usage(1, 0, 0),
        },
        page,
    )
    assert [re.sub(r"[;:] (if that|run).*", "", line.removeprefix("sm_90, m, ")) for line in found] == [
        "gate: spills 8 bytes, and decodes run it",
        "gate: registers 33, on record 32",
        "gate: spilled 8, on record 0",
        "gate: shared 65, on record 64",
        "attend, 64 rows: spilled 16, on record 0",
        "merge: not on record",
    ]
