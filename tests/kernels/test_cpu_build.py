"""The native library is built where it can be, and missed nowhere else."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kernels.cpu import library

ROOT = Path(__file__).resolve().parents[2]
X86 = platform.machine().lower() in ("x86_64", "amd64")
COMPILER = (os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++").split()[0]


@pytest.mark.skipif(not X86 or shutil.which(COMPILER) is None, reason="no compiler for an x86 processor here")
def test_with_a_compiler_the_library_is_there() -> None:
    """Otherwise every test of it would be skipped in silence."""
    assert library.load_library() is not None, "run 'pip install -e .', or 'python setup.py build_ext --inplace'"


def test_without_a_compiler_the_package_is_built_without_it(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="80")
    built = subprocess.run(
        [sys.executable, "setup.py", "build_ext", f"--build-lib={tmp_path}", f"--build-temp={tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "CC": "/nowhere/cc", "CXX": "/nowhere/c++"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert list(tmp_path.rglob("*_native*")) == []


def test_what_cannot_be_loaded_is_as_good_as_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    assert library.load_library() is None
    broken = tmp_path / f"_native{library.EXTENSION_SUFFIXES[0]}"
    broken.write_bytes(b"not a library")
    assert library.load_library() is None


def test_a_library_of_another_version_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_INTERFACE", -1)
    assert library.load_library() is None
