"""Triton's kernels over pools in int8 and fp8: they store what the references store, and attend to it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from kernels.backend import REFERENCE
from kernels.triton.attention_plan import SPLIT
from kernels.triton.record import TRITON
from tests.kernels.paged_pool import Pool, check_neighbours, check_window_edge, random_queries
from tests.kernels.test_quantised_pool import FP8, QUANTISED
from tests.kernels.triton_device import DEVICE


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(4, 2, 64), (15, 3, 80)])
def test_rotate_and_store(query_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """Of float32 heads, large and tiny and zero, every number is the reference's."""
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(4, query_heads + 2 * kv_heads, head_dim, generator=generator)
    heads = heads * 10 ** torch.linspace(-4, 4, head_dim)
    heads[1, -1] = 0.0
    angles = torch.zeros(4, head_dim // 2)
    slots = torch.tensor([19, 0, 6, -1])
    stored = []
    for kernels, device, rows in ((TRITON, DEVICE, 4), (REFERENCE, "cpu", 3)):
        pools = torch.full((2, 5, 4, kv_heads, head_dim), 9, dtype=torch.int8, device=device).view(dtype)
        scales = torch.full(pools.shape[:-1], 7.0, device=device)
        arguments = (tensor[:rows].to(device) for tensor in (heads, angles.cos(), angles.sin()))
        kernels.rotate_and_store(*arguments, pools[0], pools[1], slots[:rows].to(device), scales)
        stored.append((pools.float().cpu(), scales.cpu()))
    (pools, scales), (expected_pools, expected_scales) = stored
    assert torch.equal(pools, expected_pools) and torch.equal(scales, expected_scales)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_row_that_is_not_finite_stays_so() -> None:
    heads = torch.ones(1, 3, 16, device=DEVICE)
    heads[0, 1, 3], heads[0, 2, 9] = torch.nan, torch.inf
    pools, scales = torch.zeros(2, 1, 1, 1, 16, dtype=torch.int8, device=DEVICE), torch.zeros(2, 1, 1, 1, device=DEVICE)
    angles, slots = torch.zeros(1, 8, device=DEVICE), torch.zeros(1, dtype=torch.int64, device=DEVICE)
    TRITON.rotate_and_store(heads, angles.cos(), angles.sin(), pools[0], pools[1], slots, scales)
    assert scales.isinf().all()


def pool_of(lengths: list[int], dtype: torch.dtype, kv_heads: int = 1, head_dim: int = 16, **limits: float) -> Pool:
    return Pool(lengths, 16, kv_heads, head_dim, spare=2, kernels=TRITON, device=DEVICE, quantised=dtype, **limits)  # type: ignore[arg-type]


def check(pool: Pool, counts: list[int], heads: int) -> None:
    queries = random_queries(counts, heads, pool.head_dim)
    for row, output in enumerate(pool.attend(queries)):
        torch.testing.assert_close(output.double(), pool.dense(row, queries[row]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 1, 64), (4, 2, 80)])
def test_attention_over_what_was_stored(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    check(pool_of([15, 16, 17, 33], dtype, kv_heads, head_dim), [1, 1, 17, 3], heads)


def test_splits_windows_and_caps() -> None:
    check(pool_of([SPLIT + 9, 40], torch.int8), [2, 1], 2)
    check(pool_of([SPLIT + 9, 40], FP8, window=30, soft_cap=2.0), [2, 20], 2)


def test_scales_outside_of_every_window_are_not_read() -> None:
    check_window_edge(pool_of([90], torch.int8, window=24), 3, 1)


def test_a_token_has_the_same_bits_beside_any_neighbours() -> None:
    check_neighbours(pool_of([3, 33, SPLIT + 40], torch.int8), [1, 20, 9])
