"""Is `kernels` ours? Hugging Face publishes a package of the same import name, and one shadows the other."""

from __future__ import annotations

import importlib
import importlib.util

from common.errors import StartupError


def check_own_kernels() -> None:
    """Raises `StartupError` where `import kernels` gives another package than ours."""
    found = importlib.util.find_spec("kernels")
    where = found.origin if found else None
    try:
        project = getattr(importlib.import_module("kernels"), "PROJECT", None)
    except Exception:  # importing a stranger may raise anything
        project = None
    if project != "citybus":
        raise StartupError(
            f"the Python package 'kernels' ({where or 'not found'}) is not Citybus's: run 'pip uninstall kernels',"
            " then install citybus again"
        )
