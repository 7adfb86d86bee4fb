"""Services that do not come up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from citybus.processes import child_command
from tests.harness import ROOT


def start_refused(module: str, model: Path, *flags: str) -> str:
    """The one line with which the service `module` refuses to start with that model; it ends with status 2."""
    ended = subprocess.run(
        child_command([module, "--model", str(model), "--listen", "127.0.0.1:0", *flags]),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    lines = [line for line in ended.stderr.decode().splitlines() if not line.startswith("{")]
    assert ended.returncode == 2, ended.stderr
    assert len(lines) == 1, lines
    return lines[0]
