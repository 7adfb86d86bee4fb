"""Which of the two ways to compute on a CPU is taken: the native library, or torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from common.errors import StartupError
from executor_svc.models.llama_native import native_shape
from executor_svc.models.registry import NATIVE
from executor_svc.models.spec import ModelSpec
from kernels.cpu.library import NativeLibrary, NativeModel, NativeThreads, load_library

_LANES = 16


@dataclass(frozen=True, slots=True)
class Native:
    """The library's threads, which sample, and the model without weights that they compute; None where torch does."""

    threads: NativeThreads
    model: NativeModel | None


def native_backend(
    choice: str,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    num_threads: int,
) -> Native | None:
    """What the library computes, or None where that is nothing: for the `choice` of --cpu-backend.

    Raises `StartupError` where native is asked for and cannot be, and where its memory or its threads cannot be had.
    """
    if choice == "torch":
        return None
    unsuitable = _unsuitable(spec, dtype, kv_dtype, device, block_size)
    library = load_library() if device.type == "cpu" else None
    unavailable = _unavailable(library)
    if choice == "native" and (obstacle := unsuitable or unavailable):
        raise StartupError(f"--cpu-backend native: {obstacle}")
    if unavailable or library is None:
        return None
    try:
        threads = library.threads(library.instruction_sets()[-1], num_threads)
        return Native(threads, None if unsuitable else threads.model(native_shape(spec)))
    except MemoryError as error:
        raise StartupError("no memory for the weights: serve a smaller model, or stop something else") from error
    except OSError as error:
        raise StartupError(f"--num-threads {num_threads}: {error}; give fewer") from error


def _unsuitable(
    spec: ModelSpec, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device, block_size: int
) -> str | None:
    """Why the library cannot compute this model."""
    if device.type != "cpu":
        return f"it is for --device cpu, not {device.type}"
    if dtype is not torch.bfloat16:
        return "it computes in bfloat16 only: give --dtype bfloat16, or --cpu-backend auto"
    if kv_dtype is not dtype:
        return "it keeps keys and values in bfloat16 only: give --kv-cache-dtype auto, or --cpu-backend auto"
    if spec.architecture not in NATIVE:
        return f"it does not compute {spec.architecture}: give --cpu-backend auto"
    if spec.head_dim % _LANES:
        return f"it needs heads of a multiple of {_LANES} numbers, not {spec.head_dim}: give --cpu-backend auto"
    if block_size % _LANES:
        return f"it needs blocks of a multiple of {_LANES} tokens: give --block-size {_LANES}"
    return None


def _unavailable(library: NativeLibrary | None) -> str | None:
    """Why there is no library that works here."""
    if library is None:
        return "the library was not built: install a C++ compiler, then install citybus again"
    if not library.instruction_sets():
        return "this processor has no AVX2: give --cpu-backend auto"
    return None
