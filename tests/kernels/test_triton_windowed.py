"""Triton's paged attention with a window or a soft cap against a dense computation in float64, and its bits."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from kernels.triton.attention_plan import SPLIT, plan_attention
from kernels.triton.record import TRITON
from tests.kernels.paged_pool import Pool, check_neighbours, check_short_chunks, check_window_edge, random_queries
from tests.kernels.triton_device import DEVICE

W = 24


def pool_of(
    lengths: list[int], *, window: int | None, soft_cap: float | None = None, block_size: int = 16, kv_heads: int = 1
) -> Pool:
    return Pool(lengths, block_size, kv_heads, spare=2, kernels=TRITON, device=DEVICE, window=window, soft_cap=soft_cap)


def check(pool: Pool, counts: list[int], heads: int) -> None:
    queries = random_queries(counts, heads, pool.head_dim)
    for row, output in enumerate(pool.attend(queries)):
        torch.testing.assert_close(output.double(), pool.dense(row, queries[row]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, W, 70])
@pytest.mark.parametrize("block_size", [5, 16])
def test_windows_about_lengths_and_chunks(window: int, block_size: int) -> None:
    lengths = [W - 1, W, W + 1, 3 * W, 5 * W + 7, 90]
    check(pool_of(lengths, window=window, block_size=block_size), [1, 7, W, 1, 5 * W, 9], 3)


def test_windows_of_several_splits() -> None:
    check(pool_of([2 * SPLIT + 9, SPLIT + 30, SPLIT + W + 1], window=SPLIT + 20), [1, 9, 2], 4)


@pytest.mark.parametrize("window", [None, W])
@pytest.mark.parametrize("soft_cap", [0.5, 50.0])
def test_scores_are_capped_softly(soft_cap: float, window: int | None) -> None:
    check(pool_of([72, 60, 40], window=window, soft_cap=soft_cap, kv_heads=2), [1, 20, 40], 4)


@pytest.mark.parametrize("count", [1, 9, 30])
@pytest.mark.parametrize("window", [1, W])
def test_keys_outside_of_every_window_are_not_read(window: int, count: int) -> None:
    check_window_edge(pool_of([90], window=window), count, 1)


def test_a_token_has_the_same_bits_in_every_short_chunk() -> None:
    """The windows of the first tokens begin in the first split, those of the last ones in the second."""
    check_short_chunks(pool_of([SPLIT + W + 8], window=W))


def test_a_token_has_the_same_bits_beside_any_neighbours() -> None:
    pool = pool_of([3, W, 3 * W, SPLIT + 5, SPLIT + 40], window=W, soft_cap=2.0)
    check_neighbours(pool, [1, 1, 20, 1, 9])


def test_work_and_splits_begin_at_the_window() -> None:
    lengths, starts = [2 * SPLIT + 100, 3 * SPLIT, 300], [0, 1, 2, 102]
    batch = pool_of(lengths, window=200).batch(starts)
    plan = plan_attention(batch, block_size=16, num_heads=4, num_kv_heads=4, head_dim=16, window=200)
    sequence, keys = plan.short.table[1:, 0].tolist(), plan.short.table[1:, 4:7].tolist()
    assert list(zip(sequence, keys, strict=True)) == [
        (0, [2 * SPLIT - 100, 2 * SPLIT, 1]),
        (0, [2 * SPLIT, 2 * SPLIT + 100, 1]),
        (1, [3 * SPLIT - 200, 3 * SPLIT, 0]),
    ]
    assert plan.long.table[1:, 3:7].tolist() == [[200, 1, 264, 0], [264, 65, 300, 0]]
    assert plan.merges.tolist() == [[1, 0, 0, 0], [0, 1, 0, 2]]
