"""Keys and values in int8 and fp8: what is stored, and attention over it against a dense computation in float64."""

from __future__ import annotations

import pytest
import torch

from kernels.backend import REFERENCE
from kernels.quantise import quantise
from kernels.store_kv import store_kv
from tests.kernels.paged_pool import Pool, check_neighbours, check_short_chunks, check_window_edge, random_queries

FP8 = torch.float8_e4m3fn
QUANTISED = [torch.int8, FP8]


def test_numbers_and_scales() -> None:
    numbers, scales = quantise(torch.tensor([[0.0, 1.0, -63.5, 127.0], [2.0, -1.0, 0.02, 0.0]]), torch.int8)
    assert numbers.tolist() == [[0, 1, -63, 127], [127, -63, 1, 0]]
    assert torch.equal(scales, torch.tensor([1.0, 2 / 127]))
    numbers, scales = quantise(torch.tensor([[448.0, 1.06, -3.3, 0.003], [0.0, -3.5, 1.75, 0.0]]), FP8)
    assert numbers.float().tolist() == [[448.0, 1.0, -3.25, 2**-8], [0.0, -448.0, 224.0, 0.0]]
    assert torch.equal(scales, torch.tensor([1.0, 3.5 / 448]))


@pytest.mark.parametrize("dtype", QUANTISED)
def test_a_row_is_given_back_as_nearly_as_its_numbers_allow(dtype: torch.dtype) -> None:
    rows = torch.randn(50, 80, generator=torch.Generator().manual_seed(1)) * 10 ** torch.linspace(-20, 20, 50)[:, None]
    numbers, scales = quantise(rows, dtype)
    error = (numbers.double() * scales[:, None].double() - rows).abs()
    nearest = torch.full_like(error, 0.5) if dtype is torch.int8 else (numbers.double().abs() / 15).clamp_min(2**-10)
    assert (error <= scales[:, None] * nearest * 1.0001).all()
    alone, scale = quantise(rows[7:8].bfloat16(), dtype)
    together, many = quantise(rows.bfloat16(), dtype)
    assert torch.equal(alone.float(), together[7:8].float()) and torch.equal(scale, many[7:8])


@pytest.mark.parametrize("dtype", QUANTISED)
def test_rows_of_nothing_and_rows_that_are_not_finite(dtype: torch.dtype) -> None:
    rows = torch.tensor([[0.0, -0.0], [1e-40, 0.0], [1.0, torch.nan], [torch.inf, 1.0]])
    numbers, scales = quantise(rows, dtype)
    assert (numbers[:2].float() == 0).all() and scales[:2].isfinite().all()
    assert (~scales[2:].isfinite()).all()


@pytest.mark.parametrize("dtype", QUANTISED)
def test_store_kv_writes_its_slots_and_no_others(dtype: torch.dtype) -> None:
    pools, scales = torch.zeros(2, 5, 4, 2, 3, dtype=torch.int8).view(dtype), torch.zeros(2, 5, 4, 2)
    rows = torch.arange(1.0, 37.0).view(2, 3, 2, 3)
    store_kv(rows[0], rows[1], pools[0], pools[1], torch.tensor([19, 0, 6]), scales)
    given_back = (pools.float() * scales[..., None]).view(2, 20, 2, 3)
    expected = torch.zeros(2, 20, 2, 3)
    expected[:, [19, 0, 6]] = rows
    torch.testing.assert_close(given_back, expected, atol=0.0, rtol=1 / 16)
    assert torch.equal(scales.view(2, 20, 2) > 0, expected[..., 0] > 0)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_copy_blocks_copies_what_is_stored(dtype: torch.dtype) -> None:
    stored = torch.arange(2 * 5 * 3, dtype=torch.int8).reshape(2, 5, 3)
    pools = stored.clone().view(dtype)
    REFERENCE.copy_blocks(pools, torch.tensor([0, 1, 0]), torch.tensor([1, 4, 3]))
    assert torch.equal(pools.view(torch.int8), stored[:, [0, 0, 2, 0, 1]])


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 80), (8, 1, 16)])
def test_attention_over_what_was_stored(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    lengths, counts = [1, 15, 16, 17, 33, 300], [1, 15, 1, 2, 33, 7]
    pool = Pool(lengths, 16, kv_heads, head_dim, spare=3, quantised=dtype)
    queries = random_queries(counts, heads, head_dim)
    for row, output in enumerate(pool.attend(queries)):
        torch.testing.assert_close(output.double(), pool.dense(row, queries[row]), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_scales_outside_of_every_window_are_not_read(dtype: torch.dtype) -> None:
    check_window_edge(Pool([90], window=24, quantised=dtype), 9, 4)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_a_token_has_the_same_bits_in_every_chunk_and_beside_any_neighbours(dtype: torch.dtype) -> None:
    check_short_chunks(Pool([290], quantised=dtype))
    check_neighbours(Pool([3, 16, 33, 150, 600], quantised=dtype), [1, 1, 20, 1, 9])
