"""Paged attention against a dense computation in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch

from kernels.backend import kernels_for
from kernels.paged_attention import PagedBatch
from tests.exactness import EXACT_DTYPES

KERNELS = kernels_for(torch.device("cpu"))


@dataclass
class Pool:
    """Random keys and values of some sequences, laid out in shuffled blocks; every other slot is NaN."""

    lengths: list[int]
    block_size: int = 16
    kv_heads: int = 2
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    spare: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(len(self.lengths) + self.kv_heads)
        counts = [-(-length // self.block_size) for length in self.lengths]
        num_blocks = sum(counts) + 5
        order = iter(torch.randperm(num_blocks, generator=generator).tolist())
        width = max(counts) + self.spare
        self.tables = torch.full((len(counts), width), num_blocks - 1)
        shape = (num_blocks, self.block_size, self.kv_heads, self.head_dim)
        self.key_pool = torch.full(shape, torch.nan, dtype=self.dtype)
        self.value_pool = torch.full(shape, torch.nan, dtype=self.dtype)
        self.keys, self.values = [], []
        for row, (length, count) in enumerate(zip(self.lengths, counts, strict=True)):
            self.tables[row, :count] = torch.tensor(list(itertools.islice(order, count)))
            slots = torch.arange(length)
            slots = self.tables[row, slots // self.block_size] * self.block_size + slots % self.block_size
            keys, values = (
                torch.randn(length, self.kv_heads, self.head_dim, generator=generator).to(self.dtype) for _ in "kv"
            )
            KERNELS.store_kv(keys, values, self.key_pool, self.value_pool, slots)
            self.keys.append(keys)
            self.values.append(values)

    def attend(self, queries: list[torch.Tensor], lengths: list[int] | None = None) -> list[torch.Tensor]:
        counts = [len(query) for query in queries]
        starts = list(itertools.accumulate(counts, initial=0))
        plan = KERNELS.plan_attention(
            PagedBatch(self.tables, lengths or self.lengths, starts),
            block_size=self.block_size,
            num_heads=queries[0].shape[1],
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
        )
        output = KERNELS.paged_attention(torch.cat(queries), self.key_pool, self.value_pool, plan)
        return [output[start : start + count] for start, count in zip(starts, counts, strict=False)]

    def dense(self, row: int, query: torch.Tensor, length: int | None = None) -> torch.Tensor:
        length = length or self.lengths[row]
        group = query.shape[1] // self.kv_heads
        keys, values = (
            part[:length].double().repeat_interleave(group, 1) for part in (self.keys[row], self.values[row])
        )
        scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * self.head_dim**-0.5
        visible = torch.arange(length)[None, :] <= torch.arange(length - len(query), length)[:, None]
        weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)


def random_queries(
    counts: list[int], heads: int, head_dim: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(count, heads, head_dim, generator=generator).to(dtype) for count in counts]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 2, 16), (4, 4, 80), (8, 1, 16), (1, 1, 2)])
@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_prefill_chunks_and_decodes_in_one_call(heads: int, kv_heads: int, head_dim: int, block_size: int) -> None:
    lengths = [1, 15, 16, 17, 31, 32, 33, 300, 129, 40, 5]
    counts = [1, 15, 1, 2, 31, 1, 33, 290, 1, 7, 1]
    pool = Pool(lengths, block_size, kv_heads, head_dim, spare=3)
    queries = random_queries(counts, heads, head_dim)
    for row, output in enumerate(pool.attend(queries)):
        torch.testing.assert_close(output.double(), pool.dense(row, queries[row]), atol=2e-6, rtol=2e-6)


def test_bfloat16_is_summed_in_float32() -> None:
    pool = Pool([300, 33], dtype=torch.bfloat16)
    queries = random_queries([1, 33], 4, 16, torch.bfloat16)
    for row, output in enumerate(pool.attend(queries)):
        assert output.dtype is torch.bfloat16
        torch.testing.assert_close(output.double(), pool.dense(row, queries[row]), atol=1e-3, rtol=2**-8)


@pytest.mark.parametrize("dtype", EXACT_DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 2, 16), (4, 1, 16), (1, 1, 80)])
def test_a_token_has_the_same_bits_in_every_chunk(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    pool = Pool([290], 16, kv_heads, head_dim, dtype)
    (query,) = random_queries([290], heads, head_dim, dtype)
    (whole,) = pool.attend([query])
    for size in (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 127, 129):
        for start in range(0, 290, size):
            (part,) = pool.attend([query[start : start + size]], [min(start + size, 290)])
            assert torch.equal(part, whole[start : start + size]), (size, start)


@pytest.mark.parametrize("dtype", EXACT_DTYPES)
def test_a_token_has_the_same_bits_beside_any_neighbours(dtype: torch.dtype, num_threads: int) -> None:
    lengths = [3, 16, 33, 47, 150, 151, 299, 600, 5_000]
    pool = Pool(lengths, dtype=dtype)
    queries = random_queries([1] * len(lengths), 4, 16, dtype)
    together = pool.attend(queries)
    for row, length in enumerate(lengths):
        alone = Pool.attend(pool_of_row(pool, row), [queries[row]], [length])
        assert torch.equal(alone[0], together[row]), length


def pool_of_row(pool: Pool, row: int) -> Pool:
    alone = Pool([1], pool.block_size, pool.kv_heads, pool.head_dim, pool.dtype)
    alone.key_pool, alone.value_pool, alone.tables = pool.key_pool, pool.value_pool, pool.tables[row, None]
    return alone


def test_a_sequence_of_nan_does_not_touch_its_neighbours() -> None:
    pool = Pool([33, 40, 18])
    queries = random_queries([1, 1, 5], 4, 16)
    before = pool.attend(queries)
    pool.key_pool[pool.tables[1]] = torch.nan
    pool.value_pool[pool.tables[1]] = torch.nan
    after = pool.attend(queries)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert after[1].isnan().all()
