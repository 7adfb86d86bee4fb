"""The clients in docs/, run as they stand there: only the address is another one."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.harness import ROOT, Bus


def clients(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("name", ["library", "reflection", "form"])
def test_a_documented_client_gets_its_answer(bus: Bus, name: str) -> None:
    library, reflection = clients("api.md")
    (form,) = clients("structured-output.md")
    code = {"library": library, "reflection": reflection, "form": form}[name]
    assert "127.0.0.1:50051" in code
    code = code.replace("127.0.0.1:50051", bus.address)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    if name == "library":
        assert done.stdout.count("TokenLogprobs(logprob=-") == 2
    elif name == "form":
        assert done.stdout.count("\n") <= 1  # the name, where the answer was not cut off
    else:
        assert "'completionTokens'" in done.stdout
        assert "'reason': 'FINISH_REASON_" in done.stdout
