"""Sequences in a pool, and their attention computed densely in float64."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass

import torch

from kernels.backend import REFERENCE, Kernels
from kernels.paged_attention import PagedBatch
from kernels.quantise import quantise
from kernels.store_kv import store_kv


@dataclass
class Pool:
    """Random keys and values of some sequences, laid out in shuffled blocks; every other slot is NaN.

    Attention has this window and this soft cap. With `quantised`, the pools are of that dtype and have scales; every
    other slot has scale NaN then, and bytes that are NaN in float8.
    """

    lengths: list[int]
    block_size: int = 16
    kv_heads: int = 2
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    spare: int = 0
    kernels: Kernels = REFERENCE
    device: str = "cpu"
    window: int | None = None
    soft_cap: float | None = None
    quantised: torch.dtype | None = None

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(len(self.lengths) + self.kv_heads)
        counts = [-(-length // self.block_size) for length in self.lengths]
        num_blocks = sum(counts) + 5
        order = iter(torch.randperm(num_blocks, generator=generator).tolist())
        width = max(counts) + self.spare
        self.tables = torch.full((len(counts), width), num_blocks - 1)
        shape = (num_blocks, self.block_size, self.kv_heads, self.head_dim)
        self.key_pool, self.value_pool = (self._empty_pool(shape) for _ in "kv")
        self.scales = None if self.quantised is None else torch.full((2, *shape[:-1]), torch.nan)
        self.keys, self.values = [], []
        for row, (length, count) in enumerate(zip(self.lengths, counts, strict=True)):
            self.tables[row, :count] = torch.tensor(list(itertools.islice(order, count)))
            slots = torch.arange(length)
            slots = self.tables[row, slots // self.block_size] * self.block_size + slots % self.block_size
            keys, values = (
                torch.randn(length, self.kv_heads, self.head_dim, generator=generator).to(self.dtype) for _ in "kv"
            )
            store_kv(keys, values, self.key_pool, self.value_pool, slots, self.scales)
            self.keys.append(self._stored(keys))
            self.values.append(self._stored(values))
        self.tables, self.key_pool, self.value_pool = (
            tensor.to(self.device) for tensor in (self.tables, self.key_pool, self.value_pool)
        )
        self.scales = None if self.scales is None else self.scales.to(self.device)

    def _empty_pool(self, shape: tuple[int, ...]) -> torch.Tensor:
        if self.quantised is None:
            return torch.full(shape, torch.nan, dtype=self.dtype)
        return torch.full(shape, 0x7F, dtype=torch.int8).view(self.quantised)

    def _stored(self, rows: torch.Tensor) -> torch.Tensor:
        """What is left of `rows` in a pool."""
        if self.quantised is None:
            return rows
        numbers, scales = quantise(rows, self.quantised)
        return numbers.double() * scales[..., None]

    def attend(self, queries: list[torch.Tensor], lengths: list[int] | None = None) -> list[torch.Tensor]:
        counts = [len(query) for query in queries]
        starts = list(itertools.accumulate(counts, initial=0))
        plan = self.kernels.plan_attention(
            self.batch(starts, lengths),
            block_size=self.block_size,
            num_heads=queries[0].shape[1],
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            window=self.window,
            soft_cap=self.soft_cap,
        )
        rows = torch.cat(queries).to(self.device)
        output = self.kernels.paged_attention(rows, self.key_pool, self.value_pool, plan, self.scales).cpu()
        return [output[start : start + count] for start, count in zip(starts, counts, strict=False)]

    def batch(self, starts: list[int], lengths: list[int] | None = None) -> PagedBatch:
        return PagedBatch(self.tables, lengths or self.lengths, starts)

    def dense(self, row: int, query: torch.Tensor, length: int | None = None) -> torch.Tensor:
        length = length or self.lengths[row]
        group = query.shape[1] // self.kv_heads
        keys, values = (
            part[:length].double().repeat_interleave(group, 1) for part in (self.keys[row], self.values[row])
        )
        scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * self.head_dim**-0.5
        if self.soft_cap is not None:
            scores = self.soft_cap * (scores / self.soft_cap).tanh()
        distance = torch.arange(length - len(query), length)[:, None] - torch.arange(length)[None, :]
        visible = (distance >= 0) & (distance < (self.window or length))
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)

    def poison(self, row: int, before: int) -> None:
        """Positions of a sequence before `before` are NaN from now on."""
        positions = torch.arange(before, device=self.tables.device)
        blocks, places = self.tables[row, positions // self.block_size], positions % self.block_size
        for tensor in (self.key_pool, self.value_pool) if self.scales is None else self.scales:
            tensor[blocks, places] = torch.nan

    def alone(self, row: int) -> Pool:
        """The same pool with one sequence."""
        pool = copy.copy(self)
        pool.tables, pool.lengths = self.tables[row, None], [self.lengths[row]]
        return pool


def random_queries(
    counts: list[int], heads: int, head_dim: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(count, heads, head_dim, generator=generator).to(dtype) for count in counts]


def check_window_edge(pool: Pool, count: int, num_heads: int) -> None:
    """Of the pool's one sequence, of which `count` tokens are new: what lies before every window is not read, and the
    first key of the first window is."""
    (length,), window = pool.lengths, pool.window
    assert window is not None
    queries = random_queries([count], num_heads, pool.head_dim)
    (before,) = pool.attend(queries)
    pool.poison(0, length - count + 1 - window)
    assert torch.equal(pool.attend(queries)[0], before)
    pool.poison(0, length - count + 2 - window)
    assert pool.attend(queries)[0][0].isnan().all()


def check_neighbours(pool: Pool, counts: list[int]) -> None:
    """A token has the same bits alone and beside any neighbours."""
    queries = random_queries(counts, 4, pool.head_dim)
    together = pool.attend(queries)
    for row, length in enumerate(pool.lengths):
        (alone,) = pool.alone(row).attend([queries[row]], [length])
        assert torch.equal(alone, together[row]), length


def check_short_chunks(pool: Pool) -> None:
    """The last 16 tokens of the pool's one sequence have the same bits in every short chunk."""
    (length,) = pool.lengths
    (query,) = random_queries([16], 4, pool.head_dim)
    (whole,) = pool.attend([query])
    for size in (1, 5, 8):
        for start in range(0, 16, size):
            end = min(start + size, 16)
            (part,) = pool.attend([query[start:end]], [length - 16 + end])
            assert torch.equal(part, whole[start:end]), (size, start)
