"""What every kernel takes of a GPU, compiled for GPUs that need not be there: registers, spills, shared memory.

    python -m bench.kernel_table                            compile everything, write docs/kernels.md
    python -m bench.kernel_table --check --target sm_90     compile a part, compare it with docs/kernels.md

The kernels are launched as the executor launches them, with the operands of a model's step, but on a driver that
compiles for a named target and runs nothing. A check fails where a number is higher than the one on record, where a
row is not on record, and where a kernel that every decode runs spills.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from kernels.paged_attention import PagedBatch
from kernels.sample_tokens import Draws
from kernels.triton.attention_plan import SPLIT
from kernels.triton.record import TRITON

TABLE = Path(__file__).resolve().parent.parent / "docs" / "kernels.md"
COMMAND = "python -m bench.kernel_table"
DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
BLOCK_SIZE = 16
LONG_TILES = "64 rows"
"""Marks the launch of attention that only prefill chunks take."""


KV_NAMES = {torch.int8: "int8 KV", torch.float8_e4m3fn: "fp8 KV"}
NO_FP8 = ("sm_80",)
"""Targets whose compilers have no such numbers."""


@dataclass(frozen=True, slots=True)
class Limits:
    """A variant of attention: what a token sees, and a cap on its scores."""

    window: int | None = None
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that its kernels are compiled for, and the variants of its attention."""

    name: str
    dtype: torch.dtype
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    intermediate: int
    vocab: int
    limits: tuple[Limits, ...] = (Limits(),)
    quantised: tuple[torch.dtype, ...] = ()
    """Numbers of its pools besides `dtype`."""


ALL_LIMITS = (Limits(), Limits(window=4096), Limits(window=4096, soft_cap=50.0))
"""One model has them all: Mistral 7B has the heads of Llama 8B."""

SHAPES = (
    Shape("SmolLM2-135M, bfloat16", torch.bfloat16, 9, 3, 64, 576, 1536, 49152),
    Shape("Llama 1B, bfloat16", torch.bfloat16, 32, 8, 64, 2048, 8192, 128256),
    Shape("Llama 8B, bfloat16", torch.bfloat16, 32, 8, 128, 4096, 14336, 128256, ALL_LIMITS, tuple(KV_NAMES)),
    Shape("Llama 8B, float32", torch.float32, 32, 8, 128, 4096, 14336, 128256, quantised=tuple(KV_NAMES)),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Registers of a thread, bytes it spills, bytes of shared memory of a program."""

    registers: int
    spilled: int
    shared: int


@dataclass(frozen=True, slots=True)
class Target:
    """Stands in for a driver: it answers what the compiler asks."""

    number: int
    target: GPUTarget

    def get_current_device(self) -> int:
        return self.number

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


@contextmanager
def compiling(name: str) -> Iterator[list[tuple[str, Any]]]:
    """Every launch within only compiles for the target, and is listed with what came of it."""
    launches: list[tuple[str, Any]] = []
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        rows = f", {options['ROWS']} rows" if "ROWS" in options else ""
        limits = ", window" * bool(options.get("WINDOW")) + ", soft cap" * bool(options.get("SOFT_CAP"))
        kinds = {argument.dtype for argument in args if isinstance(argument, torch.Tensor)}
        quantised = "".join(f", {name}" for dtype, name in KV_NAMES.items() if dtype in kinds)
        launches.append((f"{self.__name__.strip('_')}{rows}{limits}{quantised}", kernel))
        return kernel

    driver.set_active(Target(list(TARGETS).index(name), TARGETS[name]))
    JITFunction.run = compile_only
    try:
        yield launches
    finally:
        JITFunction.run = run


def launch_all(shape: Shape, quantised: Sequence[torch.dtype]) -> None:
    """Every kernel of a step, once: a decode of many splits and a prefill chunk."""
    tokens = 42
    hidden = torch.zeros(tokens, shape.hidden, dtype=shape.dtype)
    TRITON.rms_norm(hidden, hidden[0], 1e-5, None)
    TRITON.rms_norm(hidden, hidden[0], 1e-5, hidden)
    TRITON.gated_activation(torch.zeros(tokens, 2 * shape.intermediate, dtype=shape.dtype))
    for limits in shape.limits:
        launch_attention(shape, tokens, limits, shape.dtype)
    for dtype in quantised:
        launch_attention(shape, tokens, Limits(), dtype)
    numbers, integers = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    draws = Draws(numbers, integers, numbers, numbers, integers, integers)
    TRITON.sample_tokens(torch.zeros(3, shape.vocab), draws)


def launch_attention(shape: Shape, tokens: int, limits: Limits, kv_dtype: torch.dtype) -> None:
    """What reads and writes a pool of `kv_dtype`."""
    pool = torch.zeros(4, BLOCK_SIZE, shape.kv_heads, shape.head_dim, dtype=kv_dtype)
    scales = torch.zeros(2, *pool.shape[:-1]) if kv_dtype in KV_NAMES else None
    angles = torch.zeros(tokens, shape.head_dim // 2)
    heads = torch.zeros(tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim, dtype=shape.dtype)
    slots = torch.zeros(tokens, dtype=torch.int64)
    queries = TRITON.rotate_and_store(heads, angles, angles, pool, pool, slots, scales)
    tables = torch.zeros(2, 300, dtype=torch.int64)
    plan = TRITON.plan_attention(
        PagedBatch(tables, [9 * SPLIT, tokens - 1], [0, 1, tokens]),
        block_size=BLOCK_SIZE,
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        window=limits.window,
        soft_cap=limits.soft_cap,
    )
    TRITON.paged_attention(queries, pool, pool, plan, scales)


def usage(kernel: Any) -> Usage:
    """Read off the machine code."""
    if "amdgcn" in kernel.asm:
        text = kernel.asm["amdgcn"]
        spilled = _number(r"\.private_segment_fixed_size: +(\d+)", text)
        return Usage(_number(r"\.vgpr_count: +(\d+)", text), spilled, kernel.metadata.shared)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(DISASSEMBLER), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Usage(_number(r"REG:(\d+)", text), _number(r"STACK:(\d+)", text), kernel.metadata.shared)


def _number(pattern: str, text: str) -> int:
    return int(re.findall(pattern, text)[-1])


def measure(targets: list[str], shapes: list[Shape]) -> dict[tuple[str, str, str], Usage]:
    """(target, shape, kernel) -> what it takes."""
    measured: dict[tuple[str, str, str], Usage] = {}
    for target in targets:
        for shape in shapes:
            with compiling(target) as launches:
                launch_all(shape, [dtype for dtype in shape.quantised if dtype is torch.int8 or target not in NO_FP8])
            for name, kernel in launches:
                measured[target, shape.name, name] = max(
                    usage(kernel), measured.get((target, shape.name, name), Usage(0, 0, 0)), key=_order
                )
            print(f"{target}, {shape.name}: {len(launches)} launches compiled", flush=True)
    return measured


def _order(used: Usage) -> tuple[int, int, int]:
    return used.spilled, used.registers, used.shared


def render(measured: dict[tuple[str, str, str], Usage]) -> str:
    """The page."""
    lines = [
        "# What the kernels take of a GPU",
        "",
        f"Written by `{COMMAND}` with Triton {triton.__version__}; `make kernels-table` makes it anew, on a machine",
        "that needs no GPU: these are the compilers' numbers. Registers are those of a thread (vector registers on",
        "gfx942), spills the bytes it keeps in memory for want of registers, shared memory is a program's, in bytes.",
        "Of two variants of a kernel, the one that takes more is shown; attention with a window, and with a soft cap",
        "besides, has rows of its own in one model, and pools in int8 and fp8 have them in the largest (sm_80 has no",
        "fp8). Only prefill chunks have launches of 64 rows.",
        "",
        "| target | model | kernel | registers | spills | shared memory |",
        "|---|---|---|---|---|---|",
    ]
    for (target, shape, name), used in measured.items():
        lines.append(f"| {target} | {shape} | {name} | {used.registers} | {used.spilled} | {used.shared} |")
    return "\n".join(lines) + "\n"


def recorded(page: str) -> dict[tuple[str, str, str], Usage]:
    """What a page says."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:1] == "|"]
    return {(row[0], row[1], row[2]): Usage(*map(int, row[3:])) for row in cells if row[-1].isdigit()}


def faults(measured: dict[tuple[str, str, str], Usage], page: str) -> list[str]:
    """What is worse than on record, one line each."""
    known = recorded(page)
    found = []
    for key, used in measured.items():
        where = ", ".join(key)
        if used.spilled and LONG_TILES not in key[2]:
            found.append(f"{where}: spills {used.spilled} bytes, and decodes run it")
        before = known.get(key)
        if before is None:
            found.append(f"{where}: not on record; run '{COMMAND}'")
            continue
        for name in ("registers", "spilled", "shared"):
            now, then = getattr(used, name), getattr(before, name)
            if now > then:
                found.append(f"{where}: {name} {now}, on record {then}; if that must be, run '{COMMAND}'")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing it")
    parser.add_argument("--target", choices=TARGETS, help="with --check, only this GPU (default: all)")
    parser.add_argument("--shape", choices=[shape.name for shape in SHAPES], help="with --check, only this model")
    options = parser.parse_args()
    shapes = [shape for shape in SHAPES if options.shape in (None, shape.name)]
    targets = [options.target] if options.target else list(TARGETS)
    if not options.check:
        if options.shape or options.target:
            parser.error("--shape and --target go with --check: the page has every row")
        TABLE.write_text(render(measure(targets, shapes)), encoding="utf-8")
    page = TABLE.read_text(encoding="utf-8")
    found = faults(measure(targets, shapes) if options.check else recorded(page), page)
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
