"""A pool in int8 or fp8: its memory, its blocks, and that batching still changes nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from common.errors import StartupError
from common.metrics import ExecutorMetrics
from common.step import BlockCopy, NewSequence, ScheduledSequence
from executor_svc.config import Config
from executor_svc.engine import Engine
from executor_svc.kv_pool import MIB, KvPool, block_bytes
from executor_svc.models.spec import ModelSpec
from executor_svc.startup import load_engine
from tests.executor.conftest import MakeEngine
from tests.executor.driver import GREEDY, Session
from tests.executor.test_engine_exactness import check

BLOCK = 2 * 2 * 16 * 2 * (16 + 4)
"""Bytes of a block of TINY: keys and values, 2 layers, 16 tokens, 2 heads of 16 numbers of a byte and a scale."""

DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
PROMPT = tuple(range(40, 105))


@pytest.mark.parametrize("name", DTYPES)
def test_bytes_of_a_block(tiny: Path, name: str) -> None:
    spec = ModelSpec.read(tiny)
    assert block_bytes(spec, 16, DTYPES[name]) == BLOCK
    pool = KvPool(spec, num_blocks=3, block_size=16, dtype=DTYPES[name], device=torch.device("cpu"))
    assert pool.num_bytes == 3 * BLOCK
    keys, values, scales = pool.layer(1)
    assert keys.shape == values.shape == (3, 16, 2, 16)
    assert scales is not None and pool.scales is not None
    assert scales.shape == (2, 3, 16, 2) and scales.data_ptr() == pool.scales[2].data_ptr()


@pytest.mark.parametrize("name", DTYPES)
def test_memory_has_room_for_more_blocks_and_the_metric_counts_scales(tiny: Path, name: str) -> None:
    registry = CollectorRegistry()
    settings = Config(model=tiny, num_threads=1, kv_cache_memory=1, kv_cache_dtype=name)
    with capture_logs() as lines:
        engine = load_engine(settings, ExecutorMetrics(registry))
    assert engine.describe().num_blocks == MIB // BLOCK
    assert registry.get_sample_value("citybus:executor_kv_pool_bytes") == MIB // BLOCK * BLOCK
    (made,) = (line for line in lines if line["event"] == "pool of keys and values made")
    assert made["dtype"] == str(DTYPES[name]).removeprefix("torch.")
    assert made["mib"] == 1.0


def test_a_gpu_without_fp8_is_told_what_it_has(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StartupError, match="use --kv-cache-dtype int8"):
        make_engine(device="cuda", kv_cache_dtype="fp8")


def first_token(engine: Engine) -> list[int]:
    return Session(engine).drawn(new_sequences=(NewSequence(1, PROMPT, 65, 0, 65, (9, 3, 30, 12, 5), GREEDY),))


@pytest.mark.parametrize("name", DTYPES)
def test_a_copied_block_has_its_scales(make_engine: MakeEngine, name: str) -> None:
    expected = first_token(make_engine(kv_cache_dtype=name))
    engine = make_engine(kv_cache_dtype=name)
    scales = engine.runner.pool.scales
    assert scales is not None
    scales.fill_(torch.nan)
    session = Session(engine)
    session.step(new_sequences=(NewSequence(1, PROMPT, 65, 0, 60, (0, 1, 2, 3), GREEDY),))
    both = session.drawn(
        copies=(BlockCopy(3, 20),),
        new_sequences=(NewSequence(2, PROMPT, 65, 60, 5, (0, 1, 2, 20, 21), GREEDY),),
    )
    assert both == session.drawn(scheduled=(ScheduledSequence(1, 5, (22,)),)) == expected
    assert torch.equal(scales[:, 20, :12], scales[:, 3, :12])
    assert scales[:, 20, :12].isfinite().all() and scales[:, 23].isnan().all()


@pytest.mark.parametrize("name", DTYPES)
def test_logits_have_the_same_bits_in_every_batch_and_chunk(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    check(make_engine(num_blocks=1024, kv_cache_dtype=name), monkeypatch)
