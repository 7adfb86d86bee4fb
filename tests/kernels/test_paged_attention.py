"""Paged attention against a dense computation in float64."""

from __future__ import annotations

import pytest
import torch

from tests.exactness import EXACT_DTYPES
from tests.kernels.paged_pool import Pool, random_queries


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
        alone = pool.alone(row).attend([queries[row]], [length])
        assert torch.equal(alone[0], together[row]), length


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
