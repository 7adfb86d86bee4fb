"""Processes to measure: started, told apart by their CPU time, and ended whatever happens."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from citybus.processes import child_command

ROOT = Path(__file__).resolve().parents[1]
START_S = 120.0
"""The longest a service may take to start."""


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A Python module with its arguments, as a process: a service, or a module of this folder."""
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(child_command(command), env=os.environ | {"PYTHONPATH": search})
    try:
        yield process
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)  # meanwhile an executor in this process answers


def cpu_s(pid: int) -> float:
    """User and system time of a process, all its threads together (proc_pid_stat(5)), in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_address() -> str:
    """An address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
