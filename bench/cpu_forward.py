"""How long is a step on a CPU, native against torch, and how far from what the machine can do?

Run: GOMP_SPINCOUNT=0 python -m bench.cpu_forward --model FOLDER (the variable is what the executor sets for torch)
Both computations are timed in turns, so that whatever else the machine does meets both alike; a machine that others
use gives ratios to trust and times that are too long. Steps are decodes of a batch at one length of context, which does
not fill its last block, as most do not, and one prefill. The machine's limits are measured before: bytes read from
memory a second, and operations a second of torch's own bf16 product; what a step needs of them at least is in the last
two columns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from executor_svc.batch import Batch
from executor_svc.host import available_cores
from executor_svc.kv_pool import KvPool
from executor_svc.models.llama import Llama
from executor_svc.models.llama_native import NativeLlama, native_shape
from executor_svc.models.registry import Model
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.backend import kernels_for
from kernels.cpu.library import NativeLibrary, NativeModel, load_library
from kernels.paged_attention import PagedBatch

CPU = torch.device("cpu")
BLOCK = 16
STREAMED = 256 * 2**20
"""Bytes read to measure the memory: more than any cache."""


@dataclass(frozen=True, slots=True)
class Case:
    """`sequences` that compute `count` tokens each, up to `length` tokens."""

    name: str
    sequences: int
    count: int
    length: int

    def batch(self) -> Batch:
        """Random tokens in blocks that are in no order."""
        blocks = -(-self.length // BLOCK)
        tables = torch.randperm(self.sequences * blocks).view(self.sequences, blocks)
        positions = torch.arange(self.length - self.count, self.length)
        slots = tables[:, positions // BLOCK] * BLOCK + positions % BLOCK
        starts = list(range(0, self.sequences * self.count + 1, self.count))
        return Batch(
            token_ids=torch.randint(0, 1000, (self.sequences * self.count,)),
            positions=positions.repeat(self.sequences),
            slots=slots.flatten(),
            drawing_rows=torch.tensor(starts[1:]) - 1,
            paged=PagedBatch(tables, [self.length] * self.sequences, starts),
        )

    def operations(self, spec: ModelSpec) -> float:
        """Multiplications and additions of the matrix products and of attention."""
        tokens = self.sequences * self.count
        heads = (spec.num_heads + spec.num_kv_heads) * spec.head_dim
        layer = 2 * spec.hidden_size * heads + 3 * spec.hidden_size * spec.intermediate_size
        keys = self.length - (self.count - 1) / 2
        attention = 2 * keys * spec.num_heads * spec.head_dim
        head = self.sequences * spec.hidden_size * spec.vocab_size
        return 2.0 * (spec.num_layers * tokens * (layer + attention) + head)

    def bytes_read(self, spec: ModelSpec, weights: int) -> float:
        """Weights once, and the keys and values of every sequence once."""
        return weights + self.sequences * self.length * spec.num_layers * spec.num_kv_heads * spec.head_dim * 4.0


CASES = (
    *(Case(f"decode of {batch} at 250", batch, 1, 250) for batch in (1, 8, 32, 64, 128)),
    Case("prefill of 512", 1, 512, 512),
)


def native_library() -> NativeLibrary:
    """The library. Raises `SystemExit` where there is none."""
    library = load_library()
    if library is None:
        raise SystemExit("the native library is not there: install a C++ compiler, then citybus again")
    return library


def timed(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def limits(rounds: int) -> tuple[float, float]:
    """Best of some rounds: bytes read a second, and operations a second of a bf16 product."""
    memory = torch.ones(STREAMED // 4)
    left, right = torch.ones(512, 4096, dtype=torch.bfloat16), torch.ones(4096, 4096, dtype=torch.bfloat16)
    read = min(timed(memory.sum) for _ in range(rounds))
    product = min(timed(lambda: left @ right) for _ in range(rounds))
    return STREAMED / read, 2.0 * 512 * 4096 * 4096 / product


@dataclass(frozen=True, slots=True)
class Times:
    """Median seconds, and the median of the ratios of two steps beside each other."""

    torch: float
    native: float
    ratio: float


def compare(case: Case, by_torch: Model, by_library: Model, native: NativeModel, rounds: int) -> Times:
    """Steps of both in turns, on one pool."""
    batch = case.batch()
    blocks = batch.paged.block_tables.numel()
    pool = KvPool(by_torch.spec, num_blocks=blocks, block_size=BLOCK, dtype=torch.bfloat16, device=CPU)
    native.prefer_huge_pages(pool.pools)  # as the executor does
    pool.pools.normal_()
    seconds = [
        [timed(lambda model=model: model.forward(batch, pool)) for model in (by_torch, by_library)]  # type: ignore[misc]
        for _ in range(rounds + 1)
    ][1:]
    slow, fast = zip(*seconds, strict=True)
    return Times(*map(statistics.median, (slow, fast, [slower / faster for slower, faster in seconds])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder in Hugging Face layout")
    parser.add_argument("--rounds", type=int, default=15, help="timed steps of each (default %(default)s)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="default: one a core (%(default)s)")
    options = parser.parse_args()
    library = native_library()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    spec = ModelSpec.read(options.model)
    native = library.threads(library.instruction_sets()[-1], options.threads).model(native_shape(spec))
    by_torch = Llama(spec, Checkpoint(options.model, torch.bfloat16, CPU), kernels_for(CPU))
    by_library = NativeLlama(spec, Checkpoint(options.model, torch.bfloat16, CPU), native)
    with torch.inference_mode():
        bandwidth, rate = limits(options.rounds)
        print(f"{options.threads} threads; memory {bandwidth / 1e9:.1f} GB/s, product {rate / 1e9:.0f} GFLOP/s")
        print(f"{'step':<20}{'torch ms':>10}{'native ms':>10}{'ratio':>7}{'bytes ms':>10}{'operations ms':>15}")
        for case in CASES:
            times = compare(case, by_torch, by_library, native, options.rounds)
            read = case.bytes_read(spec, native.weights_bytes) / bandwidth
            computed = case.operations(spec) / rate
            print(
                f"{case.name:<20}{1000 * times.torch:>10.1f}{1000 * times.native:>10.1f}{times.ratio:>7.1f}"
                f"{1000 * read:>10.1f}{1000 * computed:>15.1f}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
