"""The small operations against float64 arithmetic, at odd shapes."""

from __future__ import annotations

import pytest
import torch

from kernels.backend import kernels_for
from kernels.rotary import rotary
from kernels.store_kv import store_kv
from tests.exactness import EXACT_DTYPES

KERNELS = kernels_for(torch.device("cpu"))
ROWS = [1, 2, 3, 4, 5, 7, 15, 16, 17, 33, 64, 100]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", EXACT_DTYPES)
@pytest.mark.parametrize(("size_out", "size_in"), [(272, 64), (64, 272), (960, 576), (576, 1536), (40, 56)])
def test_linear_rows_have_the_same_bits_in_every_batch(
    size_out: int, size_in: int, dtype: torch.dtype, num_threads: int
) -> None:
    weight, inputs = random(size_out, size_in, dtype=dtype), random(130, size_in, dtype=dtype)
    whole = KERNELS.linear(inputs, weight)
    exact = inputs.double() @ weight.double().T
    torch.testing.assert_close(whole.double(), exact, atol=1e-4 if dtype is torch.float32 else 0.3, rtol=2**-8)
    for rows in ROWS:
        assert torch.equal(KERNELS.linear(inputs[:rows], weight), whole[:rows]), rows
        assert torch.equal(KERNELS.linear(inputs[130 - rows :], weight), whole[130 - rows :]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 17, 64, 576])
def test_rms_norm(size: int, dtype: torch.dtype) -> None:
    hidden, residual, weight = (
        random(33, size, dtype=dtype),
        random(33, size + 0, dtype=dtype) * 2,
        random(size, dtype=dtype),
    )
    for added in (None, residual):
        normed, total = KERNELS.rms_norm(hidden, weight, 1e-5, added)
        expected = hidden if added is None else hidden + added
        assert torch.equal(total, expected)
        wide = expected.double()
        exact = weight.double() * wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        tolerance = 1e-6 if dtype is torch.float32 else 2**-7
        torch.testing.assert_close(normed.double(), exact, atol=tolerance, rtol=tolerance)
        assert normed.dtype is dtype


def test_rms_norm_rows_do_not_depend_on_the_batch() -> None:
    hidden, weight = random(100, 576), random(576)
    whole, _ = KERNELS.rms_norm(hidden, weight, 1e-5)
    for rows in ROWS:
        assert torch.equal(KERNELS.rms_norm(hidden[:rows], weight, 1e-5)[0], whole[:rows]), rows


@pytest.mark.parametrize("head_dim", [2, 16, 64, 80])
def test_rotary_turns_pairs_half_a_head_apart(head_dim: int) -> None:
    heads, angles = random(7, 3, head_dim), random(7, head_dim // 2)
    turned = rotary(heads, angles.cos(), angles.sin())
    half = head_dim // 2
    pairs = torch.complex(heads[..., :half].double(), heads[..., half:].double())
    exact = pairs * torch.polar(torch.ones(7, 1, half).double(), angles.double()[:, None])
    torch.testing.assert_close(turned.double(), torch.cat((exact.real, exact.imag), -1), atol=1e-6, rtol=1e-6)


def test_rotary_keeps_the_dtype() -> None:
    turned = rotary(random(2, 3, 8, dtype=torch.bfloat16), torch.ones(2, 4), torch.zeros(2, 4))
    assert torch.equal(turned, random(2, 3, 8, dtype=torch.bfloat16))


@pytest.mark.parametrize("size", [1, 3, 128, 1536])
def test_gated_activation(size: int) -> None:
    rows = random(17, 2 * size)
    gate, up = rows.double().chunk(2, dim=1)
    exact = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(KERNELS.gated_activation(rows).double(), exact, atol=1e-6, rtol=1e-6)


def test_store_kv_writes_its_slots_and_no_others() -> None:
    key_pool, value_pool = torch.zeros(5, 4, 2, 3), torch.zeros(5, 4, 2, 3)
    keys, values = random(3, 2, 3), random(3, 2, 3) + 1
    store_kv(keys, values, key_pool, value_pool, torch.tensor([19, 0, 6]))
    for pool, rows in ((key_pool, keys), (value_pool, values)):
        expected = torch.zeros(20, 2, 3)
        expected[19], expected[0], expected[6] = rows[0], rows[1], rows[2]
        assert torch.equal(pool.view(20, 2, 3), expected)


def test_copy_blocks_reads_every_source_before_it_writes() -> None:
    pools = torch.arange(2 * 5 * 3).reshape(2, 5, 3).clone()
    before = pools.clone()
    KERNELS.copy_blocks(pools, torch.tensor([0, 1, 0]), torch.tensor([1, 4, 3]))
    assert torch.equal(pools[:, [1, 4, 3]], before[:, [0, 1, 0]])
    assert torch.equal(pools[:, [0, 2]], before[:, [0, 2]])
