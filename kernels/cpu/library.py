"""The native library, found beside this file and called through its C interface (`api.h`)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

from kernels.sample_tokens import Draws

_FOLDER = Path(__file__).parent
_INTERFACE = 5
"""`CITYBUS_INTERFACE` of `api.h`."""
_FAILURES: dict[int, tuple[type[Exception], str]] = {
    1: (ValueError, "the native library was given something that does not exist"),
    2: (MemoryError, "no memory"),
    3: (OSError, "no more threads can be started"),
}
"""`enum citybus_status`."""


class InstructionSet(IntEnum):
    """What the library can be run with; each is faster than the one before."""

    AVX2 = 1
    AVX512_BF16 = 2
    AMX_BF16 = 3


class Weight(IntEnum):
    """A weight of a Llama, as `enum citybus_weight`."""

    EMBEDDING = 0
    HEAD = 1
    LAST_NORM = 2
    ATTENTION_NORM = 3
    QUERY = 4
    KEY = 5
    VALUE = 6
    ATTENTION_OUT = 7
    MLP_NORM = 8
    GATE = 9
    UP = 10
    DOWN = 11


class Shape(ctypes.Structure):
    """`citybus_shape`: every window must be given."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers")),
        *((name, ctypes.c_int64) for name in ("num_heads", "num_kv_heads", "head_dim", "tied_embeddings")),
        ("windows", ctypes.POINTER(ctypes.c_int64)),
        *((name, ctypes.c_double) for name in ("rms_norm_eps", "soft_cap")),
    ]


def window_array(windows: Sequence[int | None]) -> ctypes.Array[ctypes.c_int64]:
    """The `windows` of a `Shape`, one for each layer: keys that a token sees, its own included; None for all."""
    return (ctypes.c_int64 * len(windows))(*(window or 0 for window in windows))


class _Step(ctypes.Structure):
    """`citybus_step`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_sequences", "num_drawing")),
        *((name, ctypes.c_void_p) for name in ("token_ids", "slots", "cos", "sin", "block_tables")),
        ("table_width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("lengths", "query_starts", "drawing_rows", "pools")),
        *((name, ctypes.c_int64) for name in ("num_blocks", "block_size")),
        *((name, ctypes.c_void_p) for name in ("logits", "likeliest")),
    ]


class _Draws(ctypes.Structure):
    """`citybus_draws`."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("num_rows", "vocab_size")),
        *((name, ctypes.c_void_p) for name in ("logits", *Draws.__dataclass_fields__, "tokens")),
    ]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """N tokens of S sequences, R of which draw. All are contiguous and on the CPU: int64, but float32 `cos` and `sin`.

    `token_ids` and `slots` [N]; `cos`, `sin` [N, head_dim / 2]; `block_tables` [S, any width]; `lengths` [S];
    `query_starts` [S + 1]; `drawing_rows` [R].
    """

    token_ids: torch.Tensor
    slots: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    block_tables: torch.Tensor
    lengths: torch.Tensor
    query_starts: torch.Tensor
    drawing_rows: torch.Tensor


class NativeLibrary:
    """The loaded library. Raises `OSError` for a file that is none, or was built from an older source."""

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path))
        if not hasattr(self._functions, "citybus_interface") or self._functions.citybus_interface() != _INTERFACE:
            raise OSError(f"{path} was built from another version of the source")
        declare = self._functions
        declare.citybus_threads_create.restype = ctypes.c_void_p
        declare.citybus_threads_destroy.argtypes = [ctypes.c_void_p]
        declare.citybus_sample_tokens.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Draws)]
        declare.citybus_llama_create.argtypes = [ctypes.POINTER(Shape), ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        declare.citybus_llama_create.restype = ctypes.c_void_p
        declare.citybus_llama_weights_bytes.restype = ctypes.c_int64
        declare.citybus_llama_weights_bytes.argtypes = [ctypes.c_void_p]
        declare.citybus_llama_set_weight.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p]
        declare.citybus_llama_forward.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Step)]
        declare.citybus_llama_destroy.argtypes = [ctypes.c_void_p]
        declare.citybus_prefer_huge_pages.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        for name in ("threads_destroy", "llama_destroy", "prefer_huge_pages"):
            getattr(declare, f"citybus_{name}").restype = None

    def instruction_sets(self) -> list[InstructionSet]:
        """Those that this processor has, the fastest last."""
        best = self._functions.citybus_best_isa()
        return [isa for isa in InstructionSet if isa <= best]

    def threads(self, isa: InstructionSet, num_threads: int) -> NativeThreads:
        """Threads that compute with `isa`. Raises `MemoryError` and `OSError`."""
        return NativeThreads(self._functions, isa, num_threads)


class NativeThreads:
    """The library's own threads, for one caller at a time. They sample, and compute models; they end with this object
    and the last of these."""

    def __init__(self, functions: ctypes.CDLL, isa: InstructionSet, num_threads: int) -> None:
        self.instruction_set = isa
        self._functions = functions
        status = ctypes.c_int()
        self.handle = functions.citybus_threads_create(int(isa), num_threads, ctypes.byref(status))
        _check(status.value)
        weakref.finalize(self, functions.citybus_threads_destroy, self.handle)

    def model(self, shape: Shape) -> NativeModel:
        """A model without weights. Raises `ValueError` for a shape it cannot compute, and `MemoryError`."""
        return NativeModel(self._functions, shape, self)

    def sample_tokens(self, logits: torch.Tensor, draws: Draws) -> torch.Tensor:
        """As `kernels.sample_tokens.sample_tokens`, on the CPU. Raises `MemoryError`."""
        rows, vocab_size = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        inputs = {name: getattr(draws, name).contiguous() for name in Draws.__dataclass_fields__}
        inputs["logits"] = logits.contiguous()
        pointers = {name: tensor.data_ptr() for name, tensor in inputs.items()}
        native = _Draws(num_rows=rows, vocab_size=vocab_size, tokens=tokens.data_ptr(), **pointers)
        _check(self._functions.citybus_sample_tokens(self.handle, ctypes.byref(native)))
        return tokens


class NativeModel:
    """A Llama in the library's memory, computed by `threads`."""

    def __init__(self, functions: ctypes.CDLL, shape: Shape, threads: NativeThreads) -> None:
        self.instruction_set = threads.instruction_set
        self._threads = threads  # which must not end before the model
        self._functions = functions
        self._logits = torch.empty(0, shape.vocab_size)
        status = ctypes.c_int()
        self._handle = functions.citybus_llama_create(ctypes.byref(shape), threads.handle, ctypes.byref(status))
        _check(status.value)
        weakref.finalize(self, functions.citybus_llama_destroy, self._handle)

    @property
    def weights_bytes(self) -> int:
        """Memory of the weights."""
        return int(self._functions.citybus_llama_weights_bytes(self._handle))

    def set_weight(self, weight: Weight, tensor: torch.Tensor, layer: int = 0) -> None:
        """Pack `tensor`, bfloat16 of the shape that `api.h` says; it is not needed afterwards."""
        tensor = tensor.contiguous()
        _check(self._functions.citybus_llama_set_weight(self._handle, int(weight), layer, tensor.data_ptr()))

    def prefer_huge_pages(self, pools: torch.Tensor) -> None:
        """Ask the system for huge pages where `pools`, of which nothing is used yet, lie."""
        self._functions.citybus_prefer_huge_pages(pools.data_ptr(), pools.nbytes)

    def forward(self, inputs: StepInputs, pools: torch.Tensor) -> torch.Tensor:
        """Compute the step; float32 logits [R, vocab_size], which the next call overwrites.

        `pools` is bfloat16 [2 * num_layers, num_blocks, block_size, kv_heads, head_dim], a block in the library's own
        order. Raises `ValueError` for a token, block or slot that does not exist, and `MemoryError`.
        """
        logits = self._room_for_logits(len(inputs.drawing_rows))
        self._compute(inputs, pools, logits=logits.data_ptr())
        return logits

    def likeliest(self, inputs: StepInputs, pools: torch.Tensor) -> torch.Tensor:
        """As `forward`, but int64 [R]: the lowest id of those with the greatest logit of a row."""
        tokens = torch.empty(len(inputs.drawing_rows), dtype=torch.int64)
        self._compute(inputs, pools, likeliest=tokens.data_ptr())
        return tokens

    def _compute(self, inputs: StepInputs, pools: torch.Tensor, **outputs: int) -> None:
        step = _Step(
            num_tokens=len(inputs.token_ids),
            num_sequences=len(inputs.lengths),
            num_drawing=len(inputs.drawing_rows),
            table_width=inputs.block_tables.shape[1],
            pools=pools.data_ptr(),
            num_blocks=pools.shape[1],
            block_size=pools.shape[2],
            **outputs,
            **{name: getattr(inputs, name).data_ptr() for name in StepInputs.__dataclass_fields__},
        )
        _check(self._functions.citybus_llama_forward(self._handle, ctypes.byref(step)))

    def _room_for_logits(self, rows: int) -> torch.Tensor:
        """Always the same memory: fresh pages for every step would cost a twentieth of it."""
        if len(self._logits) < rows:
            self._logits = torch.empty(rows, self._logits.shape[1])
        return self._logits[:rows]


def load_library() -> NativeLibrary | None:
    """The library; None where it was not built, or cannot be loaded."""
    for path in _candidates():
        try:
            return NativeLibrary(path)
        except OSError:  # built for another system, or before the source changed
            continue
    return None


def _candidates() -> Iterator[Path]:
    return (path for suffix in EXTENSION_SUFFIXES if (path := _FOLDER / f"_native{suffix}").exists())


def _check(status: int) -> None:
    if status:
        kind, message = _FAILURES[status]
        raise kind(message)
