"""Batching never changes what the model says: not by one bit of one logit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from common.step import Sampling
from executor_svc.engine import Engine
from kernels.cpu.library import NativeLibrary
from tests.checkpoints import write_tiny
from tests.exactness import EXACT_DTYPES
from tests.executor.conftest import MakeEngine
from tests.executor.driver import generate

PROMPTS = [
    [(index * step + 3) % 250 for index in range(length)] for length, step in ((1, 1), (16, 5), (33, 7), (150, 11))
]
COUNT = 20


def recorded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, prompts: list[list[int]], **options: object
) -> set[bytes]:
    """The logits of every token drawn, as bytes, in no order. Not greedily, as that may do without them."""
    seen: set[bytes] = set()
    samplings = [Sampling(seed=1)] * len(prompts)
    forward = engine.runner.model.forward

    def recording(*arguments: object) -> torch.Tensor:
        logits = forward(*arguments)  # type: ignore[arg-type]
        seen.update(row.numpy().tobytes() for row in logits)
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner.model, "forward", recording)
        generate(engine, prompts, COUNT, samplings=samplings, **options)  # type: ignore[arg-type]
    return seen


@pytest.mark.parametrize("dtype", EXACT_DTYPES)
def test_logits_have_the_same_bits_in_every_batch_and_chunk(
    tmp_path: Path, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    name = str(dtype).removeprefix("torch.")
    check(make_engine(write_tiny(tmp_path, dtype=name), num_blocks=1024, cpu_backend="torch"), monkeypatch)


@pytest.mark.parametrize("tie", [False, True])
def test_so_they_have_natively(
    tmp_path: Path, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, library: NativeLibrary, tie: bool
) -> None:
    model = write_tiny(tmp_path, dtype="bfloat16", tie=tie)
    check(make_engine(model, num_blocks=1024, cpu_backend="native", num_threads=2), monkeypatch)


def check(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = set().union(*(recorded(engine, monkeypatch, [prompt]) for prompt in PROMPTS))
    assert len(alone) == len(PROMPTS) * COUNT
    for options in ({"chunks": [1]}, {"chunks": [3, 17, 40]}, {"chunks": [64], "preempt": 0.1}):
        assert recorded(engine, monkeypatch, PROMPTS, **options) == alone


def test_F30_chunks_of_any_size_give_the_same_tokens(make_engine: MakeEngine) -> None:
    """One token at a time, around a block, the whole prompt, and more than that."""
    engine = make_engine(num_blocks=128)
    reference = [generate(engine, [prompt], COUNT)[0] for prompt in PROMPTS]
    for chunk in (1, 15, 16, 17, 150, 151):
        assert generate(engine, PROMPTS, COUNT, chunks=(chunk,)) == reference
