"""`citybus health`, as the process that checks a container."""

from __future__ import annotations

import subprocess
import sys

from tests.citybus.scripted_server import ScriptedServer, serving


def health(address: str, timeout: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "citybus", "health", "--address", address, "--timeout", str(timeout)]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_a_healthy_server_is_code_0_and_silence() -> None:
    with serving(ScriptedServer()) as address:
        done = health(address, 30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_server_that_is_not_there_is_code_1_and_one_line() -> None:
    done = health("127.0.0.1:1", 0.3)
    assert (done.returncode, done.stdout) == (1, "")
    refused = "no server answers at 127.0.0.1:1 (Connection refused)"
    assert done.stderr == f"citybus: no server was ready at 127.0.0.1:1 within 0.3 s: {refused}\n"
