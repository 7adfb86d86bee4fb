"""Paged attention with a window or a soft cap against a dense computation in float64, and its bits."""

from __future__ import annotations

import pytest
import torch

from tests.exactness import EXACT_DTYPES
from tests.kernels.paged_pool import Pool, random_queries

W = 24
LENGTHS = [W - 1, W, W + 1, 3 * W, 301]


@pytest.mark.parametrize("window", [1, W, 127, 128, 150])
@pytest.mark.parametrize("block_size", [5, 16])
def test_decodes_see_a_window_of_exactly_so_many_keys(window: int, block_size: int) -> None:
    pool = Pool(LENGTHS, block_size, spare=2, window=window)
    queries = random_queries([1] * len(LENGTHS), 6, 16)
    for row, output in enumerate(pool.attend(queries)):
        torch.testing.assert_close(output.double(), pool.dense(row, queries[row]), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("window", [1, W, 150])
@pytest.mark.parametrize("chunk", [7, W, 5 * W, 301])
def test_chunks_see_a_window_for_each_token(window: int, chunk: int) -> None:
    pool = Pool(LENGTHS, window=window)
    for start in range(0, 301, chunk):
        lengths = [min(start + chunk, length) for length in LENGTHS]
        counts = [max(length - start, 1) for length in lengths]
        queries = random_queries(counts, 4, 16)
        for row, output in enumerate(pool.attend(queries, lengths)):
            expected = pool.dense(row, queries[row], lengths[row])
            torch.testing.assert_close(output.double(), expected, atol=2e-6, rtol=2e-6)


def test_a_key_more_or_less_would_be_noticed() -> None:
    """That the bounds above can be missed."""
    (query,) = random_queries([1], 4, 16)
    outputs = [Pool([72], window=window).dense(0, query) for window in (W - 1, W, W + 1)]
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3 < (outputs[2] - outputs[1]).abs().max()


@pytest.mark.parametrize("count", [1, 7, 140])
@pytest.mark.parametrize("window", [1, W, 150])
def test_keys_outside_of_every_window_are_not_read(window: int, count: int) -> None:
    pool = Pool([301, 301], window=window)
    queries = random_queries([count, 1], 4, 16)
    before = pool.attend(queries)
    pool.poison(0, 301 - count + 1 - window)
    pool.poison(1, 301 - window)
    assert all(map(torch.equal, pool.attend(queries), before))
    pool.poison(1, 301 - window + 1)
    assert pool.attend(queries)[1].isnan().all()


@pytest.mark.parametrize("dtype", EXACT_DTYPES)
@pytest.mark.parametrize(("window", "soft_cap"), [(1, None), (W, None), (128, None), (150, 2.0), (None, 2.0)])
def test_a_token_has_the_same_bits_in_every_chunk(
    window: int | None, soft_cap: float | None, dtype: torch.dtype, num_threads: int
) -> None:
    pool = Pool([301], 16, dtype=dtype, window=window, soft_cap=soft_cap)
    (query,) = random_queries([301], 6, 16, dtype)
    (whole,) = pool.attend([query])
    for size in (1, 7, W, 127, 5 * W + 9):
        for start in range(0, 301, size):
            (part,) = pool.attend([query[start : start + size]], [min(start + size, 301)])
            assert torch.equal(part, whole[start : start + size]), (size, start)


@pytest.mark.parametrize("dtype", EXACT_DTYPES)
@pytest.mark.parametrize(("window", "soft_cap"), [(W, None), (150, 2.0)])
def test_a_token_has_the_same_bits_beside_any_neighbours(
    window: int, soft_cap: float | None, dtype: torch.dtype, num_threads: int
) -> None:
    lengths = [3, *LENGTHS, 150, 151, 152, 5_000]
    pool = Pool(lengths, dtype=dtype, window=window, soft_cap=soft_cap)
    queries = random_queries([1] * len(lengths), 4, 16, dtype)
    together = pool.attend(queries)
    for row, length in enumerate(lengths):
        alone = pool.alone(row).attend([queries[row]], [length])
        assert torch.equal(alone[0], together[row]), length


def test_a_window_as_long_as_the_sequence_changes_no_bit() -> None:
    queries = random_queries([1, 40, 301], 4, 16)
    without = Pool([150, 200, 301]).attend(queries)
    assert all(map(torch.equal, Pool([150, 200, 301], window=301).attend(queries), without))


@pytest.mark.parametrize("window", [None, W])
@pytest.mark.parametrize("soft_cap", [0.5, 2.0, 50.0])
def test_scores_are_capped_softly(soft_cap: float, window: int | None) -> None:
    pool = Pool([72, 301, 40], window=window, soft_cap=soft_cap)
    queries = [3 * query for query in random_queries([1, 40, 40], 4, 16)]
    for row, output in enumerate(pool.attend(queries)):
        torch.testing.assert_close(output.double(), pool.dense(row, queries[row]), atol=3e-6, rtol=3e-6)
