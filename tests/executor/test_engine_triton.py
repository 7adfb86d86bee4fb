"""An engine over Triton's kernels, interpreted, draws the tokens of an engine over the references."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry

pytest.importorskip("triton")

from common.metrics import ExecutorMetrics
from common.model_identity import ModelIdentity
from common.step import Sampling
from executor_svc.constraints import Constraints
from executor_svc.engine import Engine, EngineLimits
from executor_svc.kv_pool import KvPool
from executor_svc.model_runner import ModelRunner
from executor_svc.models.llama import Llama
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.backend import REFERENCE, Kernels
from kernels.triton.record import TRITON
from tests.checkpoints import BOS, write_tiny, write_windowed
from tests.executor.driver import GREEDY, generate
from tests.windows import ALTERNATING

PROMPTS = [[BOS], [BOS, *range(20, 36)], [BOS, *range(60, 79)]]
SAMPLINGS = [GREEDY, Sampling(temperature=0.9, top_k=40, top_p=0.9, seed=7), GREEDY]


def engine(folder: Path, kernels: Kernels, kv_dtype: torch.dtype = torch.float32) -> Engine:
    spec, cpu = ModelSpec.read(folder), torch.device("cpu")
    model = Llama(spec, Checkpoint(folder, torch.float32, cpu), kernels)
    pool = KvPool(spec, num_blocks=32, block_size=4, dtype=kv_dtype, device=cpu)
    metrics = ExecutorMetrics(CollectorRegistry())
    constraints = Constraints(folder, spec.vocab_size, 1)
    runner = ModelRunner(model, pool, kernels, metrics)
    return Engine(ModelIdentity("tiny", b""), runner, constraints, EngineLimits(64, 8, 64), metrics, pipelines=True)


def test_prefill_chunks_and_decodes_draw_the_references_tokens(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", num_layers=1)
    options = {"chunks": (7, 17), "samplings": SAMPLINGS}
    expected = generate(engine(folder, REFERENCE), PROMPTS, 4, **options)
    assert generate(engine(folder, TRITON), PROMPTS, 4, **options) == expected


def test_windows_of_some_layers(tmp_path: Path) -> None:
    folder = write_windowed(tmp_path / "windowed", window=7, layer_types=ALTERNATING)
    expected = generate(engine(folder, REFERENCE), PROMPTS, 2, chunks=(7, 17))
    assert generate(engine(folder, TRITON), PROMPTS, 2, chunks=(7, 17)) == expected


def test_a_quantised_pool(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny", num_layers=1)
    expected = generate(engine(folder, REFERENCE, torch.int8), PROMPTS, 2, chunks=(7, 17))
    assert generate(engine(folder, TRITON, torch.int8), PROMPTS, 2, chunks=(7, 17)) == expected
