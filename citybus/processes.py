"""Child processes that never outlive this one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def child_command(module: Sequence[str]) -> list[str]:
    """The command that runs a Python module, with its arguments, and is killed when the process that started it dies.

    It is to be started from a thread that lives as long as the process: the kernel watches that thread (prctl(2)).
    Where there is no Linux, the child runs without that. Modules in the working directory are not looked at.
    """
    return [sys.executable, "-P", "-m", "citybus.processes", str(os.getpid()), *module]


def _become(parent: int, module: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            raise SystemExit(1)
    os.execv(sys.executable, [sys.executable, "-P", "-m", *module])


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
