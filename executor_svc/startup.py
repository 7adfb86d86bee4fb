"""Everything between an operator's settings and an engine that is ready."""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from dataclasses import replace

import structlog
import torch

from common.errors import StartupError
from common.matching import GrammarError
from common.metrics import ExecutorMetrics
from common.model_identity import read_identity
from executor_svc.config import Config
from executor_svc.constraints import Constraints
from executor_svc.cpu_backend import native_backend
from executor_svc.cuda_graphs import GraphedModel, capture_cuda
from executor_svc.engine import Engine, EngineLimits
from executor_svc.host import available_cores, available_memory
from executor_svc.kv_pool import MIB, KvPool, blocks_that_fit
from executor_svc.model_runner import ModelRunner
from executor_svc.models.llama import Llama
from executor_svc.models.registry import Model, load_model
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.backend import kernels_for

_MEMORY_SHARE = 0.25
_CPU_MEMORY_LIMIT = 1024 * MIB
_MAX_GRAMMAR_THREADS = 4
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_KV_DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
_FP8_CAPABILITY = (8, 9)

log = structlog.get_logger()


def load_engine(settings: Config, metrics: ExecutorMetrics) -> Engine:
    """Load the model and make the pool. Raises `StartupError`."""
    started = time.perf_counter()
    device = _device(settings.device)
    num_threads = settings.num_threads or available_cores()
    torch.set_num_threads(num_threads)
    spec = ModelSpec.read(settings.model)
    constraints = Constraints(settings.model, spec.vocab_size, min(num_threads, _MAX_GRAMMAR_THREADS))
    dtype = _DTYPES.get(spec.dtype if settings.dtype == "auto" else settings.dtype, torch.float32)
    kv_dtype = _kv_dtype(settings.kv_cache_dtype, dtype, device)
    native = native_backend(
        settings.cpu_backend,
        spec,
        dtype=dtype,
        kv_dtype=kv_dtype,
        device=device,
        block_size=settings.block_size,
        num_threads=num_threads,
    )
    backend = kernels_for(device)
    if native is not None:
        backend = replace(backend, sample_tokens=native.threads.sample_tokens)
    native_model = native.model if native else None
    computes = f"native {native_model.instruction_set.name.lower()}" if native_model else backend.name
    log.info(
        "loading the model",
        model=str(settings.model),
        architecture=spec.architecture,
        dtype=_name(dtype),
        backend=computes,
    )
    model = load_model(spec, Checkpoint(settings.model, dtype, device), backend, native_model)
    seconds = time.perf_counter() - started
    log.info("model loaded", mib=round(model.weights_bytes / MIB), seconds=round(seconds, 2))
    pool = _make_pool(settings, spec, kv_dtype, device)
    if native_model is not None:
        native_model.prefer_huge_pages(pool.pools)
    mib = round(pool.num_bytes / MIB, 1)
    log.info("pool of keys and values made", dtype=_name(kv_dtype), blocks=pool.num_blocks, mib=mib)
    metrics.model_load_seconds.set(seconds)
    metrics.weights_bytes.set(model.weights_bytes)
    metrics.kv_pool_bytes.set(pool.num_bytes)
    metrics.backend_info.labels(backend=computes).set(1)
    limits = EngineLimits(_max_model_len(settings, spec), settings.max_sequences, settings.max_step_tokens)
    if device.type == "cuda":
        model = _graphed(model, pool, limits)
    _check(constraints)
    identity = read_identity(settings.model)
    pipelines = device.type == "cuda"
    runner = ModelRunner(model, pool, backend, metrics)
    return Engine(identity, runner, constraints, limits, metrics, pipelines=pipelines)


def _check(constraints: Constraints) -> None:
    """Say so where answers cannot be held to a form; everything else is served all the same."""
    try:
        constraints.wait_ready()
    except GrammarError as error:
        log.warning("structured output is not available", reason=str(error))


def _graphed(model: Model, pool: KvPool, limits: EngineLimits) -> Model:
    """`model` with graphs of its decodes, where its kernels can be captured."""
    if not isinstance(model, Llama) or not importlib.util.find_spec("triton"):
        log.warning("decodes without CUDA graphs", reason="triton is not installed")
        return model
    return GraphedModel(
        model, pool, limits.max_sequences, limits.max_model_len, capture_cuda(torch.cuda.graph_pool_handle())
    )


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise StartupError("--device cuda: torch finds no CUDA device; use --device cpu, or a torch with CUDA")
    if name == "cuda" and importlib.util.find_spec("triton") and not _has_compiler():
        raise StartupError("--device cuda: Triton needs a C compiler; install gcc, or name one in the variable CC")
    return torch.device(name)


def _has_compiler() -> bool:
    return "CC" in os.environ or any(map(shutil.which, ("gcc", "clang")))


def _kv_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Of the pool, for a model that computes in `dtype`."""
    if name == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise StartupError("--kv-cache-dtype fp8: this GPU is older than Ada and has no fp8; use --kv-cache-dtype int8")
    return _KV_DTYPES.get(name, dtype)


def _max_model_len(settings: Config, spec: ModelSpec) -> int:
    if settings.max_model_len is None:
        return spec.max_model_len
    if settings.max_model_len > spec.max_model_len:
        raise StartupError(
            f"--max-model-len {settings.max_model_len} is more than the model's {spec.max_model_len} tokens: lower it"
        )
    return settings.max_model_len


def _make_pool(settings: Config, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> KvPool:
    num_blocks = settings.num_blocks
    if num_blocks == 0:
        memory = _kv_cache_memory(settings, device)
        num_blocks = blocks_that_fit(spec, settings.block_size, dtype, memory)
    try:
        return KvPool(spec, num_blocks=num_blocks, block_size=settings.block_size, dtype=dtype, device=device)
    except RuntimeError as error:  # torch's way to say that memory is short
        raise StartupError(
            f"no memory for {num_blocks} blocks of keys and values: lower --kv-cache-memory or --num-blocks"
        ) from error


def _kv_cache_memory(settings: Config, device: torch.device) -> int:
    """Bytes for keys and values."""
    if settings.kv_cache_memory is not None:
        return settings.kv_cache_memory * MIB
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _MEMORY_SHARE)
    available = available_memory()
    return _CPU_MEMORY_LIMIT if available is None else min(int(available * _MEMORY_SHARE), _CPU_MEMORY_LIMIT)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
