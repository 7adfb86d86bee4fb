"""Every test of an executor runs on the fake one, on the real engine and on one that computes natively; over gRPC, on
the fake one and on an engine that pipelines its steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from prometheus_client import CollectorRegistry

from common.metrics import ExecutorMetrics
from common.model_identity import read_identity
from common.step_executor import StepExecutor
from executor_svc.config import Config
from executor_svc.constraints import Constraints
from executor_svc.engine import Engine, EngineLimits
from executor_svc.startup import load_engine
from kernels.cpu.library import load_library
from tests.checkpoints import write_tiny
from tests.contract.session import NUM_BLOCKS
from tests.contract.subjects import Subject, engine_subject, fake_subject
from tests.contract.wire_executor import Served, WireExecutor


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    torch.set_num_threads(1)
    model = write_tiny(tmp_path_factory.mktemp("contract") / "tiny")
    settings = Config(model=model, num_blocks=NUM_BLOCKS, num_threads=1, max_sequences=16, max_step_tokens=128)
    return load_engine(settings, ExecutorMetrics(CollectorRegistry()))


@pytest.fixture(scope="session")
def native_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    if load_library() is None:
        pytest.skip("the native library is not built")
    model = write_tiny(tmp_path_factory.mktemp("contract") / "tiny", dtype="bfloat16")
    settings = Config(
        model=model, num_blocks=NUM_BLOCKS, num_threads=2, max_sequences=16, max_step_tokens=128, cpu_backend="native"
    )
    return load_engine(settings, ExecutorMetrics(CollectorRegistry()))


@pytest.fixture(scope="session")
def pipelined_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """One that leaves its tokens where a device would have them, for as long as nobody asks."""
    torch.set_num_threads(1)
    model = write_tiny(tmp_path_factory.mktemp("contract") / "tiny")
    settings = Config(model=model, num_blocks=NUM_BLOCKS, num_threads=1, max_sequences=16, max_step_tokens=128)
    metrics = ExecutorMetrics(CollectorRegistry())
    waits = load_engine(settings, metrics)
    info = waits.describe()
    constraints = Constraints(model, info.vocab_size, 1)
    limits = EngineLimits(info.max_model_len, info.max_sequences, info.max_step_tokens)
    return Engine(read_identity(model), waits.runner, constraints, limits, metrics, pipelines=True)


@pytest.fixture(params=["fake", "engine", "native_engine", "fake over gRPC", "pipelined_engine over gRPC"])
def subject(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subject]:
    kind, _, wire = request.param.partition(" over ")
    inner = fake_subject() if kind == "fake" else engine_subject(request.getfixturevalue(kind), monkeypatch)
    if not wire:
        yield inner
        return
    with Served(inner.executor) as served:
        executor = WireExecutor(served.target)
        yield replace(inner, executor=executor)
        executor.close()


@pytest.fixture
def executor(subject: Subject) -> StepExecutor:
    return subject.executor
