"""The default model in float32: what it says does not depend on the company, and is what its weights say.

Deselected with `-m "not real_model"`. `python -m bench.same_tokens` asks the same of longer answers, and of prompts in
a file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import jsonschema
import pytest

from bench.prompts import BUILT_IN
from bench.same_tokens import answers_alone, answers_together, differences_from_transformers
from citybus import Client, FinishReason
from tests.e2e.plan_log import rows
from tests.harness import ROOT, Bus, running_bus

MAX_TOKENS = 12
EVERY = 5
"""One prompt of so many is asked alone too, some of each length; transformers is given every one alone."""


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The model that is served by default: fetched and converted, by one test process, where it is not there yet."""
    command = [sys.executable, "-m", "citybus", "model", "add", "default"]
    added = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert added.returncode == 0, added.stderr
    return Path(added.stdout.strip())


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 16},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"enum": ["Oslo", "Paris", "Rome"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


def _check_forms(bus: Bus) -> None:
    """A vocabulary of 49,152 tokens, and a model that knows what it is asked for."""
    asked = [{"role": "user", "content": "Describe Ann, who is 44 years old and lives in Paris, as JSON."}]
    with Client(bus.address) as client:
        for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}):
            answer = client.complete(messages=asked, max_tokens=120, json_schema=PERSON, **options)  # type: ignore[arg-type]
            assert answer.finish.reason is FinishReason.STOP
            jsonschema.validate(json.loads(answer.text), PERSON)
            if not options["temperature"]:
                assert json.loads(answer.text)["city"] == "Paris"
        capital = [{"role": "user", "content": "What is the capital of France?"}]
        choice = ["Berlin", "Paris", "Rome"]
        chosen = client.complete(messages=capital, temperature=0.0, choice=choice)  # type: ignore[arg-type]
        assert chosen.text in choice and chosen.finish.reason is FinishReason.STOP
    bus.wait_idle()


@pytest.mark.real_model
@pytest.mark.timeout(900)
async def test_64_prompts_at_once_are_answered_as_each_alone_and_as_by_transformers(
    default_model: Path, tmp_path: Path
) -> None:
    flags = ("--dtype", "float32", "--num-threads", "2", "--kv-cache-memory", "512")
    with running_bus(default_model, tmp_path, executor=flags) as bus:
        together = await answers_together(bus.address, BUILT_IN, MAX_TOKENS)
        assert max(map(rows, bus.plans())) == len(BUILT_IN) == 64, "they were to run in one batch"
        assert await answers_alone(bus.address, BUILT_IN[::EVERY], MAX_TOKENS) == together[::EVERY]
        bus.wait_idle()
        _check_forms(bus)
    assert len(set(together)) > 48, "the prompts are to have different answers"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        assert differences_from_transformers(default_model, BUILT_IN, together, MAX_TOKENS) == []
