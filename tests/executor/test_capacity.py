"""How much memory there is, and how many blocks fit in it."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from common import config
from common.errors import StartupError
from executor_svc.config import Config
from executor_svc.host import available_cores, available_memory
from executor_svc.kv_pool import MIB, KvPool, block_bytes, blocks_that_fit
from executor_svc.models.spec import ModelSpec
from tests.executor.conftest import MakeEngine

BLOCK = 2 * 2 * 16 * 2 * 16 * 4
"""Bytes of a float32 block of TINY: keys and values, 2 layers, 16 tokens, 2 heads of 16 numbers."""


@pytest.fixture
def spec(tiny: Path) -> ModelSpec:
    return ModelSpec.read(tiny)


def test_bytes_of_a_block(spec: ModelSpec) -> None:
    assert block_bytes(spec, 16, torch.float32) == BLOCK
    assert block_bytes(spec, 32, torch.bfloat16) == BLOCK
    pool = KvPool(spec, num_blocks=3, block_size=16, dtype=torch.float32, device=torch.device("cpu"))
    assert pool.num_bytes == 3 * BLOCK


def test_as_many_blocks_as_fit(spec: ModelSpec) -> None:
    assert [blocks_that_fit(spec, 16, torch.float32, memory) for memory in (BLOCK, 2 * BLOCK - 1, 2 * BLOCK)] == [
        1,
        1,
        2,
    ]
    with pytest.raises(StartupError, match="raise --kv-cache-memory"):
        blocks_that_fit(spec, 16, torch.float32, BLOCK - 1)


def test_layers_do_not_share_memory(spec: ModelSpec) -> None:
    pool = KvPool(spec, num_blocks=3, block_size=4, dtype=torch.float32, device=torch.device("cpu"))
    pool.pools.zero_()
    keys, values, scales = pool.layer(1)
    assert scales is None
    keys.fill_(1)
    values.fill_(2)
    assert [float(part.mean()) for layer in range(2) for part in pool.layer(layer)[:2]] == [0, 0, 1, 2]
    assert keys.shape == (3, 4, 2, 16)


def test_the_pool_is_sized_from_its_memory(make_engine: MakeEngine) -> None:
    assert make_engine(num_blocks=0, kv_cache_memory=1).describe().num_blocks == MIB // BLOCK
    assert make_engine(num_blocks=0).describe().num_blocks <= 1024 * MIB // BLOCK
    with pytest.raises(StartupError, match="no block of keys and values fits"):
        make_engine(num_blocks=0, kv_cache_memory=1, block_size=10_000)


def test_a_pool_beyond_all_memory_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(StartupError, match="lower --kv-cache-memory or --num-blocks"):
        make_engine(num_blocks=10**12)


def test_the_context_may_be_lowered_and_not_raised(make_engine: MakeEngine) -> None:
    assert make_engine().describe().max_model_len == 512
    assert make_engine(max_model_len=511).describe().max_model_len == 511
    with pytest.raises(StartupError, match="--max-model-len 513 is more than the model's 512"):
        make_engine(max_model_len=513)


def test_a_device_that_is_not_there_is_refused(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StartupError, match="--device cuda: torch finds no CUDA device"):
        make_engine(device="cuda")


def test_a_gpu_without_a_compiler_for_triton_is_refused(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(StartupError, match="Triton needs a C compiler; install gcc"):
        make_engine(device="cuda")


def test_memory_left_to_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  999 kB\nMemAvailable:      800 kB\n")
    meminfo = tmp_path / "meminfo"
    assert available_memory(tmp_path, meminfo) == 800 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert available_memory(tmp_path, meminfo) == 800 * 1024
    (tmp_path / "memory.max").write_text("501000\n")
    assert available_memory(tmp_path, meminfo) == 500_000
    (tmp_path / "memory.current").write_text("501001\n")
    assert available_memory(tmp_path, meminfo) == 0
    assert available_memory(tmp_path / "none", tmp_path / "none") is None


def test_cores_of_a_container_count(tmp_path: Path) -> None:
    all_cores = available_cores(tmp_path)
    assert all_cores >= 1
    for quota, expected in (("max 100000", all_cores), ("150000 100000", min(all_cores, 2)), ("1000 100000", 1)):
        (tmp_path / "cpu.max").write_text(quota)
        assert available_cores(tmp_path) == expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"block_size": 0}, "--block-size must be at least 1"),
        ({"kv_cache_memory": 0}, "--kv-cache-memory must be at least 1"),
        ({"num_threads": -1}, "--num-threads must be at least 1"),
        ({"max_model_len": 1}, "--max-model-len must be at least 2"),
        ({"num_blocks": -1}, "--num-blocks must not be less than 0"),
    ],
)
def test_options_out_of_range(values: dict[str, Any], words: str) -> None:
    argv = ["--model=m", *(f"--{name.replace('_', '-')}={value}" for name, value in values.items())]
    with pytest.raises(StartupError, match=words):
        config.load(Config, argv, {}, prog="executor", env_prefix="CITYBUS_EXECUTOR")
