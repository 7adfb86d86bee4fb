"""Mistral's windows through the engine: transformers' tokens, whatever the chunks, the batch and the preemptions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.step import NewSequence, ScheduledSequence
from kernels.cpu.library import NativeLibrary
from tests.checkpoints import BOS, write_json, write_windowed
from tests.executor.conftest import MakeEngine
from tests.executor.driver import GREEDY, Session, generate
from tests.executor.test_engine_exactness import check
from tests.windows import ALTERNATING, W, greedy

LENGTHS = [W - 1, W, W + 1, 3 * W]
PROMPTS = [[BOS, *((7 * length + 3 * index) % 250 for index in range(1, length))] for length in LENGTHS]
COUNT = 3 * W


@pytest.fixture(scope="module", params=[None, ALTERNATING], ids=["every layer", "alternating"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_windowed(tmp_path_factory.mktemp("windowed"), window=W, layer_types=request.param)


@pytest.fixture(scope="module")
def reference(folder: Path) -> list[list[int]]:
    return greedy(folder, PROMPTS, COUNT)


@pytest.mark.parametrize("chunk", [1, 7, W, 5 * W])
@pytest.mark.parametrize("block_size", [16, 5])
def test_F47_tokens_are_those_of_transformers(
    folder: Path, make_engine: MakeEngine, reference: list[list[int]], chunk: int, block_size: int
) -> None:
    engine = make_engine(folder, num_blocks=256, block_size=block_size)
    assert generate(engine, PROMPTS, COUNT, chunks=[chunk], seed=chunk) == reference


def test_F47_preempted_past_the_window(folder: Path, make_engine: MakeEngine, reference: list[list[int]]) -> None:
    engine = make_engine(folder, num_blocks=4096)
    assert generate(engine, PROMPTS, COUNT, chunks=[1, 7, 5 * W], preempt=0.05) == reference


def test_F47_a_cached_prefix_past_the_window(folder: Path, make_engine: MakeEngine, reference: list[list[int]]) -> None:
    session = Session(make_engine(folder, num_blocks=16))
    prompt, blocks = tuple(PROMPTS[-1]), (9, 3, 12, 5, 7)
    session.step(new_sequences=(NewSequence(1, prompt, 72, 0, 72, blocks, GREEDY),))
    shared = NewSequence(2, prompt, 72, 64, 8, (*blocks[:4], 1), GREEDY)
    tokens = session.drawn(finished_ids=(1,), new_sequences=(shared,))
    tokens += [session.drawn(scheduled=(ScheduledSequence(2, 1, blocks),))[0] for blocks in ((), (), ())]
    assert tokens == reference[-1][:4]


@pytest.mark.parametrize("window", [W - 1, W + 1, 200])
def test_another_window_says_something_else(
    tmp_path: Path, folder: Path, reference: list[list[int]], window: int
) -> None:
    """That the tests above can fail."""
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    write_json(tmp_path / "config.json", config | {"sliding_window": window})
    other = greedy(tmp_path, PROMPTS, COUNT)
    assert all(left != right for left, right in zip(reference, other, strict=True))


@pytest.mark.parametrize("off", [{"sliding_window": None}, {"use_sliding_window": False}], ids=str)
def test_F47_no_window_is_full_attention(tmp_path: Path, make_engine: MakeEngine, off: dict[str, bool | None]) -> None:
    """As a Llama of the same weights has it."""
    folder = write_windowed(tmp_path, window=W)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | off)
    assert generate(make_engine(folder), PROMPTS, 20) == generate(make_engine(), PROMPTS, 20)


def test_logits_have_the_same_bits_in_every_batch_and_chunk(
    tmp_path: Path, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_windowed(tmp_path, window=W, layer_types=ALTERNATING)
    check(make_engine(folder, num_blocks=1024), monkeypatch)


def test_so_they_have_natively(
    tmp_path: Path, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, library: NativeLibrary
) -> None:
    folder = write_windowed(tmp_path, window=W, layer_types=ALTERNATING, dtype="bfloat16")
    check(make_engine(folder, num_blocks=1024, cpu_backend="native", num_threads=2), monkeypatch)
