"""What the end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import write_chain, write_tiny
from tests.harness import Bus, running_bus


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights, context 256."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    write_tiny(folder, max_model_len=256)
    return folder


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that counts from the last token on, 255 being followed by 0, and never ends by itself; context 65,536."""
    script = {token: (token + 1) % 256 for token in range(256)}
    return write_chain(tmp_path_factory.mktemp("counting") / "counting", script, max_model_len=65_536)


@pytest.fixture(scope="module")
def bus(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """A bus of the tiny model, for the tests of one module that leave it as they found it."""
    with running_bus(tiny, tmp_path_factory.mktemp("bus"), executor=("--num-blocks", "64")) as started:
        yield started
