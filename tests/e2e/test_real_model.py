"""The default model in float32: what it says does not depend on the company, and is what its weights say.

Deselected with `-m "not real_model"`. `python -m bench.same_tokens` asks the same of longer answers, and of prompts in
a file.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from bench.prompts import BUILT_IN
from bench.same_tokens import answers_alone, answers_together, differences_from_transformers
from tests.e2e.plan_log import rows
from tests.harness import ROOT, running_bus

MAX_TOKENS = 12


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The model that is served by default: fetched and converted, by one test process, where it is not there yet."""
    command = [sys.executable, "-m", "citybus", "model", "add", "default"]
    added = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert added.returncode == 0, added.stderr
    return Path(added.stdout.strip())


@pytest.mark.real_model
@pytest.mark.timeout(900)
async def test_64_prompts_at_once_are_answered_as_each_alone_and_as_by_transformers(
    default_model: Path, tmp_path: Path
) -> None:
    flags = ("--dtype", "float32", "--num-threads", "2", "--kv-cache-memory", "512")
    with running_bus(default_model, tmp_path, executor=flags) as bus:
        together = await answers_together(bus.address, BUILT_IN, MAX_TOKENS)
        assert max(map(rows, bus.plans())) == len(BUILT_IN) == 64, "they were to run in one batch"
        assert await answers_alone(bus.address, BUILT_IN, MAX_TOKENS) == together
        bus.wait_idle()
    assert len(set(together)) > 48, "the prompts are to have different answers"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        assert differences_from_transformers(default_model, BUILT_IN, together, MAX_TOKENS) == []
