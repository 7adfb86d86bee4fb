"""Sampling in Triton draws the very tokens that the reference draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from kernels import sample_tokens as reference
from kernels.triton.sample_tokens import sample_tokens
from tests.kernels.triton_device import DEVICE

COLUMNS = {
    "temperatures": (torch.float64, 1.0),
    "top_ks": (torch.int64, 0),
    "top_ps": (torch.float64, 1.0),
    "min_ps": (torch.float64, 0.0),
    "seeds": (torch.int64, 0),
    "counters": (torch.int64, 0),
}


def both(logits: torch.Tensor, **columns: Any) -> tuple[list[int], list[int]]:
    """The tokens of the reference and of the kernel."""
    rows = len(logits)
    values = {
        name: torch.as_tensor(columns.get(name, default), dtype=dtype).expand(rows).clone()
        for name, (dtype, default) in COLUMNS.items()
    }
    expected = reference.sample_tokens(logits, reference.Draws(**values)).tolist()
    draws = reference.Draws(**{name: value.to(DEVICE) for name, value in values.items()})
    return expected, sample_tokens(logits.to(DEVICE), draws).tolist()


def random_logits(rows: int, size: int = 37, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 2


@pytest.mark.parametrize("size", [1, 5, 37, 2_500])
def test_greedy(size: int) -> None:
    logits = random_logits(3, size)
    logits[1] = 5.0
    expected, tokens = both(logits, temperatures=torch.tensor([0.0, 0.0, 1e-9]))
    assert tokens == expected
    assert tokens[1] == 0, "of equals, the lowest id"


def test_plain_draws_follow_seeds_and_counters() -> None:
    seeds = torch.tensor([0, 1, 1 << 32, -1, -(1 << 63), 77, 77, 77])
    counters = torch.tensor([0, 0, 0, 0, 0, 1, 1 << 33, -1 & 0xFFFFFFFF])
    expected, tokens = both(torch.zeros(8, 5_000), seeds=seeds, counters=counters)
    assert tokens == expected
    assert len(set(tokens)) == 8


@pytest.mark.parametrize(
    "columns",
    [
        {"top_ks": 5},
        {"top_ks": 37},
        {"top_ks": 1},
        {"top_ps": 0.8},
        {"top_ps": 1e-9},
        {"min_ps": 0.1},
        {"min_ps": 1.0},
        {"temperatures": 0.5, "top_ks": 9, "top_ps": 0.7, "min_ps": 0.02},
        {"temperatures": 3.0, "top_ks": 20, "top_ps": 0.9},
    ],
)
def test_filters(columns: dict[str, Any]) -> None:
    expected, tokens = both(random_logits(3), counters=torch.arange(3), **columns)
    assert tokens == expected


def test_filters_of_a_vocabulary_of_several_blocks() -> None:
    expected, tokens = both(random_logits(2, 2_500), counters=torch.arange(2), top_ks=900, top_ps=0.95)
    assert tokens == expected


def test_ties_keep_the_lowest_ids() -> None:
    logits = torch.tensor([1.0, 5.0, 5.0, -0.0, 5.0, 5.0, 0.0]).expand(6, -1)
    top_ks = torch.tensor([2, 3, 5, 6, 3, 6])
    top_ps = torch.tensor([1.0, 1.0, 1.0, 0.6, 0.6, 0.95])
    expected, tokens = both(logits, counters=torch.arange(6), top_ks=top_ks, top_ps=top_ps)
    assert tokens == expected
    expected, tokens = both(torch.zeros(2, 300), counters=torch.arange(2), top_ps=0.5)
    assert tokens == expected
    assert max(tokens) < 150


def test_nan_and_infinity_stay_in_their_row() -> None:
    logits = random_logits(6, seed=2)
    logits[1] = torch.nan
    logits[2, 4] = torch.nan
    logits[3, 5] = torch.inf
    logits[4] = -torch.inf
    for temperature in (0.0, 1.0):
        expected, tokens = both(logits, temperatures=temperature)
        assert tokens == expected
