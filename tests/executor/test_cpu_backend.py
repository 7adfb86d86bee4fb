"""Who computes on a CPU: the native library or torch, what they agree on, and what an operator is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from common.errors import StartupError
from common.metrics import ExecutorMetrics
from common.step import Sampling
from executor_svc import cpu_backend
from executor_svc.config import Config
from executor_svc.engine import Engine
from executor_svc.models.llama import Llama
from executor_svc.models.llama_native import NativeLlama
from executor_svc.models.registry import GreedyModel
from executor_svc.startup import load_engine
from kernels.backend import REFERENCE
from kernels.cpu.library import NativeLibrary, NativeThreads, load_library
from tests.checkpoints import write_chain, write_tiny
from tests.executor.driver import GREEDY, generate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("bfloat16") / "tiny", dtype="bfloat16")


def load(model: Path, registry: CollectorRegistry | None = None, **options: Any) -> Engine:
    settings = Config(model=model, num_threads=1, num_blocks=64, **options)
    return load_engine(settings, ExecutorMetrics(registry or CollectorRegistry()))


def samples_natively(engine: Engine) -> bool:
    return isinstance(getattr(engine.runner.kernels.sample_tokens, "__self__", None), NativeThreads)


@pytest.mark.parametrize("choice", ["auto", "native"])
def test_bfloat16_is_native_and_says_so(folder: Path, library: NativeLibrary, choice: str) -> None:
    registry = CollectorRegistry()
    with capture_logs() as lines:
        engine = load(folder, registry, cpu_backend=choice)
    name = f"native {library.instruction_sets()[-1].name.lower()}"
    assert isinstance(engine.runner.model, NativeLlama) and samples_natively(engine)
    assert lines[0]["event"] == "loading the model" and lines[0]["backend"] == name
    assert registry.get_sample_value("citybus:executor_backend_info", {"backend": name}) == 1
    assert registry.get_sample_value("citybus:executor_weights_bytes") == engine.runner.model.weights_bytes


@pytest.mark.parametrize(
    "options",
    [
        {"cpu_backend": "torch"},
        {"dtype": "float32"},
        {"block_size": 8},
        {"cpu_backend": "auto", "block_size": 24},
        {"kv_cache_dtype": "int8"},
    ],
)
def test_every_other_model_is_computed_by_torch(folder: Path, options: dict[str, Any]) -> None:
    registry = CollectorRegistry()
    with capture_logs() as lines:
        engine = load(folder, registry, **options)
    assert isinstance(engine.runner.model, Llama)
    assert samples_natively(engine) == (options.get("cpu_backend") != "torch" and load_library() is not None)
    assert lines[0]["backend"] == "torch"
    assert registry.get_sample_value("citybus:executor_backend_info", {"backend": "torch"}) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "float32"}, "bfloat16 only: give --dtype bfloat16"),
        ({"block_size": 8}, "give --block-size 16"),
        ({"kv_cache_dtype": "fp8"}, "give --kv-cache-dtype auto, or --cpu-backend auto"),
    ],
)
def test_native_where_it_cannot_be_says_why(
    folder: Path, library: NativeLibrary, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(StartupError, match=words):
        load(folder, cpu_backend="native", **options)


def test_without_the_library_torch_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_backend, "load_library", lambda: None)
    engine = load(folder)
    assert isinstance(engine.runner.model, Llama) and engine.runner.kernels is REFERENCE
    with pytest.raises(StartupError, match="install a C\\+\\+ compiler"):
        load(folder, cpu_backend="native")


def test_a_processor_without_avx2_computes_by_torch(
    folder: Path, library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NativeLibrary, "instruction_sets", lambda self: [])
    assert isinstance(load(folder).runner.model, Llama)
    with pytest.raises(StartupError, match="no AVX2"):
        load(folder, cpu_backend="native")


@pytest.mark.parametrize(
    ("owner", "name", "fault", "words"),
    [
        (NativeThreads, "model", MemoryError(), "no memory for the weights"),
        (NativeLibrary, "threads", OSError("no more threads"), "^--num-threads 1: no more .*give fewer$"),
    ],
)
def test_what_the_library_cannot_have_is_one_line(
    folder: Path,
    library: NativeLibrary,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    fault: Exception,
    words: str,
) -> None:
    def fail(*arguments: object) -> NoReturn:
        raise fault

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(StartupError, match=words):
        load(folder)


def test_a_chain_follows_its_script(tmp_path: Path, library: NativeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact values through embedding, residual and head, which a wrong order of weights would change."""
    script = {token: (token * 7 + 1) % 256 for token in range(256)}
    model = write_chain(tmp_path, script, dtype="bfloat16")
    expected = [script[9]]
    while len(expected) < 30:
        expected.append(script[expected[-1]])
    for isa in library.instruction_sets():
        with monkeypatch.context() as patch:
            patch.setattr(NativeLibrary, "instruction_sets", lambda self, isa=isa: [isa])
            assert generate(load(model, cpu_backend="native"), [[3, 9]], 30) == [expected], isa.name


def test_the_backends_agree_about_a_prompt(folder: Path, library: NativeLibrary) -> None:
    """Greedy tokens of a random model part ways at the first near tie, so only their beginnings can be compared."""
    prompts = [[(7 * index + shift) % 250 for index in range(40)] for shift in range(12)]
    by_torch, by_library = (generate(load(folder, cpu_backend=choice), prompts, 1) for choice in ("torch", "native"))
    agreed = sum(left == right for left, right in zip(by_torch, by_library, strict=True))
    assert agreed >= 11


def test_greedy_rows_alone_draw_what_they_draw_from_logits(folder: Path, library: NativeLibrary) -> None:
    """Alone they are drawn without logits being written; beside a row that is not greedy all have them."""
    prompts = [[(7 * index + shift) % 250 for index in range(20 + shift)] for shift in range(5)]
    engine = load(folder, cpu_backend="native")
    assert isinstance(engine.runner.model, GreedyModel)
    alone = generate(engine, prompts, 12)
    beside = generate(load(folder, cpu_backend="native"), [*prompts, [1]], 12, samplings=[GREEDY] * 5 + [Sampling()])
    assert beside[:5] == alone
