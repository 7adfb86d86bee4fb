"""Engines over TINY models, one thread each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry

from common.metrics import ExecutorMetrics
from executor_svc.config import Config
from executor_svc.engine import Engine
from executor_svc.startup import load_engine
from kernels.backend import kernels_for
from kernels.cpu.library import NativeLibrary, load_library
from tests.checkpoints import write_tiny

kernels_for(torch.device("cpu"))  # before the first product of the process, which other tests may compute

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture
def library() -> NativeLibrary:
    found = load_library()
    if found is None:
        pytest.skip("the native library is not built")
    return found


@pytest.fixture
def make_engine(tiny: Path) -> MakeEngine:
    def make(model: Path = tiny, **options: Any) -> Engine:
        settings = Config(model=model, **({"num_threads": 1, "num_blocks": 64} | options))
        return load_engine(settings, ExecutorMetrics(CollectorRegistry()))

    return make


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    return make_engine()
