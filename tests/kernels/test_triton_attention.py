"""Paged attention in Triton against a dense computation in float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from kernels.triton.attention_plan import SPLIT
from kernels.triton.record import TRITON
from tests.kernels.paged_pool import Pool, check_neighbours, check_short_chunks, random_queries
from tests.kernels.triton_device import DEVICE

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def pool_of(
    lengths: list[int],
    *,
    block_size: int = 16,
    kv_heads: int = 1,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Pool:
    return Pool(lengths, block_size, kv_heads, head_dim, dtype, spare=2, kernels=TRITON, device=DEVICE)


def check(pool: Pool, counts: list[int], heads: int) -> None:
    queries = random_queries(counts, heads, pool.head_dim, pool.dtype)
    tolerance = TOLERANCES[pool.dtype]
    for row, output in enumerate(pool.attend(queries)):
        assert output.dtype is pool.dtype
        torch.testing.assert_close(output.double(), pool.dense(row, queries[row]), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_head_sizes(head_dim: int) -> None:
    check(pool_of([33, 17, 20], head_dim=head_dim), [1, 17, 3], 2)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (2, 2), (9, 3), (4, 1), (8, 1), (32, 1), (16, 2)])
def test_groups_of_heads(heads: int, kv_heads: int) -> None:
    check(pool_of([33, 5, 20], kv_heads=kv_heads), [1, 5, 18], heads)


@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_lengths_about_a_block(block_size: int) -> None:
    lengths = [1, 15, 16, 17, 31, 32, 33, 40, 70]
    check(pool_of(lengths, block_size=block_size), [1, 1, 1, 2, 31, 1, 33, 7, 66], 3)


NOT_INTERPRETED = pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter multiplies bfloat16 as integers")


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=NOT_INTERPRETED)])
def test_narrow_dtypes_are_summed_in_float32(dtype: torch.dtype) -> None:
    check(pool_of([100, 33], head_dim=64, dtype=dtype), [1, 33], 4)


@pytest.mark.parametrize("extra", [-1, 0, 1, 30])
def test_splits_of_a_long_sequence(extra: int) -> None:
    check(pool_of([2 * SPLIT + extra, SPLIT + 1, SPLIT, 9]), [1, 5, 1, 1], 4)


def test_a_token_has_the_same_bits_beside_any_neighbours() -> None:
    check_neighbours(pool_of([3, 16, 33, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 40]), [1, 1, 20, 1, 2, 1, 9])


def test_a_token_has_the_same_bits_in_every_short_chunk() -> None:
    check_short_chunks(pool_of([SPLIT + 7]))


def test_no_tokens() -> None:
    assert pool_of([3]).attend([torch.empty(0, 4, 16)])[0].shape == (0, 4, 16)
