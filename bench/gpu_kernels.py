"""Triton's kernels on a device: are they right, and how near are they to what the device can do?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from kernels.backend import REFERENCE, Kernels
from kernels.paged_attention import PagedBatch
from kernels.quantise import quantise
from kernels.sample_tokens import Draws
from kernels.triton.record import TRITON

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a model, and of the step whose kernels are timed."""

    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    intermediate: int = 14336
    vocab: int = 128256
    sequences: int = 64
    context: int = 4096
    prefill: int = 4096


@dataclass(frozen=True, slots=True)
class Attention:
    """A step's queries and the pools they attend to."""

    queries: torch.Tensor
    pools: torch.Tensor
    batch: PagedBatch
    sizes: Sizes
    window: int | None = None
    soft_cap: float | None = None
    scales: torch.Tensor | None = None

    @staticmethod
    def random(sizes: Sizes, counts: list[int], lengths: list[int], dtype: torch.dtype, device: str) -> Attention:
        """Blocks in shuffled order; those of no sequence are NaN."""
        needed = [-(-length // BLOCK_SIZE) for length in lengths]
        order = iter(torch.randperm(sum(needed) + 3).tolist())
        tables = torch.zeros(len(lengths), max(needed), dtype=torch.int64)
        pools = torch.full(
            (2, sum(needed) + 3, BLOCK_SIZE, sizes.kv_heads, sizes.head_dim), torch.nan, dtype=dtype, device=device
        )
        for row, count in enumerate(needed):
            blocks = [next(order) for _ in range(count)]
            tables[row, :count] = torch.tensor(blocks)
            pools[:, blocks] = torch.randn(2, count, *pools.shape[2:], device=device).to(dtype)
        starts = [sum(counts[:index]) for index in range(len(counts) + 1)]
        queries = torch.randn(sum(counts), sizes.heads, sizes.head_dim, device=device).to(dtype)
        return Attention(queries, pools, PagedBatch(tables.to(device), lengths, starts), sizes)

    def quantised(self, dtype: torch.dtype) -> Attention:
        """The same with pools of `dtype`."""
        numbers, scales = quantise(self.pools, dtype)
        return replace(self, pools=numbers, scales=scales)

    def plan(self, kernels: Kernels) -> Any:
        return kernels.plan_attention(
            self.batch,
            block_size=BLOCK_SIZE,
            num_heads=self.sizes.heads,
            num_kv_heads=self.sizes.kv_heads,
            head_dim=self.sizes.head_dim,
            window=self.window,
            soft_cap=self.soft_cap,
        )

    def run(self, kernels: Kernels) -> torch.Tensor:
        return self.attend(kernels, self.plan(kernels))

    def attend(self, kernels: Kernels, plan: Any) -> torch.Tensor:
        return kernels.paged_attention(self.queries, self.pools[0], self.pools[1], plan, self.scales)


def quantised_dtypes(device: str) -> dict[str, torch.dtype]:
    """Of pools with scales: those that the device has."""
    has_fp8 = device == "cpu" or torch.cuda.get_device_capability() >= (8, 9)
    return {"int8": torch.int8} | ({"fp8": torch.float8_e4m3fn} if has_fp8 else {})


def errors(device: str, dtypes: list[torch.dtype]) -> Iterator[dict[str, object]]:
    """The greatest difference from the reference, computed in float32, of each kernel, and whether it may be."""
    torch.manual_seed(0)
    for dtype in dtypes:
        for name, (got, expected) in _pairs(device, dtype).items():
            error = (got.float() - expected.float()).abs().max().item()
            yield {"kernel": name, "dtype": str(dtype), "error": error, "ok": error <= TOLERANCES[dtype]}
    got, expected = _drawn(device)
    different = int((got.cpu() != expected.cpu()).sum())
    yield {"kernel": "sample_tokens", "rows": len(got), "different": different, "ok": different == 0}


def _pairs(device: str, dtype: torch.dtype) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """What the kernel gives and what it should."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    hidden, residual, weight, rows = random(5, 576), random(5, 576), random(576), random(5, 1100)
    pairs = {
        "rms_norm": (
            TRITON.rms_norm(hidden, weight, 1e-5, residual)[0],
            REFERENCE.rms_norm(hidden, weight, 1e-5, residual)[0],
        ),
        "gated_activation": (TRITON.gated_activation(rows), REFERENCE.gated_activation(rows)),
    }
    heads, angles = random(5, 15, 64), torch.rand(5, 32, device=device) * 9
    pools = random(2, 4, BLOCK_SIZE, 3, 64)
    slots = torch.tensor([63, 0, 17, 5, 40], device=device)
    arguments = (heads, angles.cos(), angles.sin())
    queries = TRITON.rotate_and_store(*arguments, pools[0], pools[1], slots)
    expected_pools = pools.clone()
    expected = REFERENCE.rotate_and_store(*arguments, expected_pools[0], expected_pools[1], slots)
    pairs["rotate_and_store"] = (
        torch.cat((queries.flatten(), pools.flatten())),
        torch.cat((expected.flatten(), expected_pools.flatten())),
    )
    for head_dim, group in ((64, 4), (80, 3), (128, 4), (256, 1)):
        sizes = Sizes(heads=2 * group, kv_heads=2, head_dim=head_dim)
        attention = Attention.random(sizes, [1, 33, 1, 5], [1100, 70, 16, 530], dtype, device)
        wide = replace(attention, queries=attention.queries.float(), pools=attention.pools.float())
        pairs[f"paged_attention, {head_dim}"] = (attention.run(TRITON), wide.run(REFERENCE))
    attention, wide = (replace(one, window=600, soft_cap=2.0) for one in (attention, wide))
    pairs["paged_attention, 256, window and soft cap"] = (attention.run(TRITON), wide.run(REFERENCE))
    few = Attention.random(Sizes(heads=6, kv_heads=2, head_dim=80), [1, 5], [530, 33], dtype, device)
    for name, quantised in quantised_dtypes(device).items():
        stored = few.quantised(quantised)
        wide = replace(stored, queries=stored.queries.float())
        pairs[f"paged_attention, {name}"] = (stored.run(TRITON), wide.run(REFERENCE))
        pairs[f"rotate_and_store, {name}"] = (
            _stored(TRITON, heads, slots, quantised),
            _stored(REFERENCE, heads, slots, quantised),
        )
    return pairs


def _stored(kernels: Kernels, heads: torch.Tensor, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is in a pool with scales after `heads`, not turned, were stored: every number is to be the same."""
    pools = torch.zeros(2, 4, BLOCK_SIZE, 3, 64, dtype=torch.int8, device=heads.device).view(dtype)
    scales = torch.zeros(pools.shape[:-1], device=heads.device)
    angles = torch.zeros(len(heads), 32, device=heads.device)
    kernels.rotate_and_store(heads, angles.cos(), angles.sin(), pools[0], pools[1], slots, scales)
    return torch.cat((pools.float().flatten(), scales.flatten()))


def _drawn(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    rows, vocab = 8, 1000
    logits = torch.randn(rows, vocab) * 3
    numbers = torch.arange(rows)
    draws = Draws(
        temperatures=(numbers % 3).double(),
        top_ks=numbers % 4 * 7,
        top_ps=1 - numbers.double() % 3 * 0.2,
        min_ps=numbers.double() % 5 * 0.01,
        seeds=numbers * 77 - 100,
        counters=numbers,
    )
    moved = Draws(*(getattr(draws, name).to(device) for name in Draws.__slots__))
    return TRITON.sample_tokens(logits.to(device), moved), REFERENCE.sample_tokens(logits, draws)


def seconds(run: Callable[[], object], device: str) -> float:
    """Of one call; on a GPU the median of many with a cold second-level cache."""
    if device == "cuda":
        from triton.testing import do_bench

        return float(do_bench(run, return_mode="median")) / 1e3
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def ceilings(device: str, size: int) -> dict[str, float]:
    """Bytes a second of a copy, read and written, and operations a second of a bfloat16 product of size ** 3."""
    source = torch.zeros(size * size * 16, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in "lr")
    return {
        "copy_bytes_per_s": 2 * source.nbytes / seconds(lambda: target.copy_(source), device),
        "matmul_flop_per_s": 2 * size**3 / seconds(lambda: left @ right, device),
    }


def times(sizes: Sizes, device: str, dtype: torch.dtype) -> Iterator[dict[str, object]]:
    """Seconds of each kernel in a step of `sizes`, with the bytes that it must move or the operations it must do."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    rows, width = sizes.sequences, dtype.itemsize
    hidden, weight = random(rows, sizes.hidden), random(sizes.hidden)
    yield _timed("rms_norm", lambda: TRITON.rms_norm(hidden, weight, 1e-5, hidden), device, 4 * hidden.nbytes)
    gate_up = random(rows, 2 * sizes.intermediate)
    yield _timed("gated_activation", lambda: TRITON.gated_activation(gate_up), device, gate_up.nbytes * 3 // 2)
    decode = Attention.random(sizes, [1] * rows, [sizes.context] * rows, dtype, device)
    numbers = 2 * rows * sizes.context * sizes.kv_heads * sizes.head_dim
    read = numbers * width
    yield _timed("paged_attention, decodes", partial(decode.attend, TRITON, decode.plan(TRITON)), device, read)
    for name, quantised in quantised_dtypes(device).items():
        stored = decode.quantised(quantised)
        attend = partial(stored.attend, TRITON, stored.plan(TRITON))
        yield _timed(f"paged_attention, decodes, {name}", attend, device, numbers + numbers // sizes.head_dim * 4)
    one = Attention.random(sizes, [1], [8 * sizes.context], dtype, device)
    attend = partial(one.attend, TRITON, one.plan(TRITON))
    yield _timed("paged_attention, one long decode", attend, device, 8 * read // rows)
    chunk = Attention.random(sizes, [sizes.prefill], [sizes.prefill], dtype, device)
    attend = partial(chunk.attend, TRITON, chunk.plan(TRITON))
    flop = 2 * sizes.prefill**2 * sizes.heads * sizes.head_dim
    yield _timed("paged_attention, prefill", attend, device, flop=flop)
    logits = torch.randn(rows, sizes.vocab, device=device)
    for name, *settings in (
        ("greedy", 0.0, 0, 1.0),
        ("plain", 1.0, 0, 1.0),
        ("top-k, top-p", 1.0, 50, 0.9),
    ):
        sample = partial(TRITON.sample_tokens, logits, _draws(rows, *settings, device=device))
        yield _timed(f"sample_tokens, {name}", sample, device, logits.nbytes)


def _draws(rows: int, temperature: float, top_k: float, top_p: float, *, device: str) -> Draws:
    def column(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    whole, real = torch.int64, torch.float64
    return Draws(
        temperatures=column(temperature, real),
        top_ks=column(top_k, whole),
        top_ps=column(top_p, real),
        min_ps=column(0.0, real),
        seeds=column(7, whole),
        counters=torch.arange(rows, device=device),
    )


def _timed(name: str, run: Callable[[], object], device: str, moved: int = 0, flop: int = 0) -> dict[str, object]:
    took = seconds(run, device)
    report: dict[str, object] = {"kernel": name, "microseconds": round(took * 1e6, 1)}
    if moved:
        report["bytes_per_s"] = moved / took
    if flop:
        report["flop_per_s"] = flop / took
    return report
