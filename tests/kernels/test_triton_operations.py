"""The small operations in Triton against float64 arithmetic and the references, at odd shapes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

from kernels.backend import REFERENCE, kernels_for
from kernels.rotate_and_store import rotate_and_store
from kernels.triton.record import TRITON
from tests.kernels.triton_device import DEVICE

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCES = {torch.float32: 1e-6, torch.float16: 2**-9, torch.bfloat16: 2**-6}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 17, 64, 576])
def test_rms_norm(size: int, dtype: torch.dtype) -> None:
    hidden, weight = random(3, size, dtype=dtype), random(size, dtype=dtype, seed=1)
    residual = random(3, size, dtype=dtype, seed=2)
    for added in (None, residual):
        normed, total = TRITON.rms_norm(hidden, weight, 1e-5, added)
        expected = hidden if added is None else hidden + added
        slack = 2**-7 if dtype is torch.bfloat16 and DEVICE == "cpu" else 0.0  # the interpreter rounds it towards 0
        torch.testing.assert_close(total, expected, atol=0.0, rtol=slack)
        wide = total.double()
        exact = weight.double() * wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        torch.testing.assert_close(normed.double(), exact, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
        assert normed.dtype is dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 3, 128, 1100])
def test_gated_activation(size: int, dtype: torch.dtype) -> None:
    rows = random(3, 2 * size, dtype=dtype)
    gate, up = rows.double().chunk(2, dim=1)
    exact = gate / (1 + (-gate).exp()) * up
    gated = TRITON.gated_activation(rows)
    torch.testing.assert_close(gated.double(), exact, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])
    assert gated.dtype is dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("query_heads", "kv_heads", "head_dim"), [(4, 2, 64), (9, 3, 80), (1, 1, 2), (20, 4, 96)])
def test_rotate_and_store(query_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    heads = random(3, query_heads + 2 * kv_heads, head_dim, dtype=dtype)
    angles = random(3, head_dim // 2, seed=1) * 100
    pools = random(2, 5, 4, kv_heads, head_dim, dtype=dtype, seed=2)
    slots = torch.tensor([19, 0, 6], device=DEVICE)
    expected_pools = pools.clone()
    queries = TRITON.rotate_and_store(heads, angles.cos(), angles.sin(), pools[0], pools[1], slots)
    expected = rotate_and_store(heads, angles.cos(), angles.sin(), expected_pools[0], expected_pools[1], slots)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(queries, expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(pools, expected_pools, atol=tolerance, rtol=tolerance)
    TRITON.rotate_and_store(heads + 1, angles.cos(), angles.sin(), pools[0], pools[1], torch.full_like(slots, -1))
    others = [slot for slot in range(20) if slot not in (19, 0, 6)]
    flat, before = (
        tensor.view(2, 20, kv_heads, head_dim)[:, others]
        for tensor in (pools, random(*pools.shape, dtype=dtype, seed=2))
    )
    assert torch.equal(flat, before)
    assert torch.equal(pools[1].view(20, kv_heads, head_dim)[slots], heads[:, query_heads + kv_heads :])


def test_copy_blocks_reads_every_source_before_it_writes() -> None:
    pools = torch.arange(2 * 5 * 3, device=DEVICE).reshape(2, 5, 3)
    before = pools.clone()
    TRITON.copy_blocks(pools, torch.tensor([0, 1, 0], device=DEVICE), torch.tensor([1, 4, 3], device=DEVICE))
    assert torch.equal(pools[:, [1, 4, 3]], before[:, [0, 1, 0]])
    assert torch.equal(pools[:, [0, 2]], before[:, [0, 2]])


def test_a_gpu_has_the_kernels_of_triton_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels_for(torch.device("cuda")) is TRITON
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert kernels_for(torch.device("cuda")) is REFERENCE


def test_an_executor_on_a_cpu_never_imports_triton() -> None:
    code = "import sys; sys.modules['triton'] = None; import executor_svc.startup"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_rows() -> None:
    assert TRITON.rms_norm(random(0, 8), random(8), 1e-5)[0].shape == (0, 8)
    assert TRITON.gated_activation(random(0, 8)).shape == (0, 4)
