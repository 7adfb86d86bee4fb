"""Tokens to many readers, and the cost of two processes: small, with real processes and a model that is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench import split_cost, streams
from tests.checkpoints import write_tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def same_threads() -> Iterator[None]:
    """An engine in this process chooses the number of torch's threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


async def test_every_reader_gets_every_token(model: Path) -> None:
    flags = ("--streams", "12", "--connections", "3", "--step-ms", "5", "--max-tokens", "40")
    found = await streams.run(streams.options_of(["--model", str(model), *flags]))
    assert found["answers incomplete"] == found["streams broken"] == 0
    assert found["tokens/s offered"] == 2400
    tokens, seconds = found["tokens/s"], found["seconds measured"]
    assert isinstance(tokens, int) and isinstance(seconds, float)
    assert 0 <= tokens * seconds <= 12 * 40 + tokens / 100, "no more than there are; the time is rounded"


async def test_one_process_and_two_are_compared(model: Path, same_threads: None) -> None:
    flags = ("--requests", "4", "--max-tokens", "4", "--num-blocks", "32", "--rounds", "2")
    found = await split_cost.run(split_cost.options_of(["--model", str(model), *flags]))
    for name in ("tokens/s", "CPU ms/token"):
        speeds = [found[f"{name} in one process"], found[f"{name} in two"]]
        assert all(isinstance(each, list) and len(each) == 2 and min(each) > 0 for each in speeds)
    ratios = found["tokens/s, two / one: median, least, most"]
    assert isinstance(ratios, list)
    assert ratios[1] <= ratios[0] <= ratios[2]
