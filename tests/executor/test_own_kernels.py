"""The guard against another package named `kernels`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from executor_svc.own_kernels import check_own_kernels

ROOT = Path(__file__).resolve().parents[2]


def test_ours_passes() -> None:
    check_own_kernels()


@pytest.mark.parametrize("content", ["def get_kernel(name): ...", "import a_module_that_is_not_there"])
def test_a_stranger_is_named_at_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text(content)
    ended = subprocess.run(
        [sys.executable, "-m", "executor_svc", "--model=none", "--listen=127.0.0.1:0"],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert str(tmp_path / "kernels" / "__init__.py") in ended.stderr
    assert "pip uninstall kernels" in ended.stderr
    assert "Traceback" not in ended.stderr
