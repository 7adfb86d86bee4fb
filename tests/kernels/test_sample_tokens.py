"""Drawing tokens: known random numbers, filters one by one, and statistics."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from kernels.philox import philox_4x32, uniform
from kernels.sample_tokens import Draws, sample_tokens

V = 37


def draws(rows: int, **columns: Any) -> Draws:
    values: dict[str, Any] = {"temperatures": 1.0, "top_ks": 0, "top_ps": 1.0, "min_ps": 0.0, "seeds": 0, "counters": 0}
    dtypes = {name: torch.float64 if isinstance(value, float) else torch.int64 for name, value in values.items()}
    values |= columns
    return Draws(
        **{name: torch.as_tensor(value, dtype=dtypes[name]).expand(rows).clone() for name, value in values.items()}
    )


def many(logits: torch.Tensor, count: int = 4_000, **columns: Any) -> list[int]:
    """`count` draws from one row of logits, with counters 0, 1, 2 ..."""
    rows = logits.expand(count, -1)
    return sample_tokens(rows, draws(count, counters=torch.arange(count), **columns)).tolist()


def random_logits(rows: int = 1, seed: int = 0, size: int = V) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed)) * 2


def chi_square(tokens: list[int], probabilities: torch.Tensor) -> float:
    """Pearson's statistic, in standard deviations above its mean."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities[probabilities > 0] * len(tokens)
    common = expected >= 5
    statistic = ((counts[probabilities > 0] - expected).square() / expected)[common].sum()
    degrees = int(common.sum()) - 1
    return float((statistic - degrees) / math.sqrt(2 * degrees))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_numbers(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = [torch.tensor([word, 5]) for word in counter]
    keys = [torch.tensor([word, 9]) for word in key]
    output = philox_4x32((words[0], words[1], words[2], words[3]), (keys[0], keys[1]))
    assert [int(word[0]) for word in output] == expected


def test_uniform_uses_all_64_bits_of_the_seed_and_53_of_the_output() -> None:
    assert uniform(torch.tensor([0]), torch.tensor([0])).item() == (0x6627E8D5 >> 5) / 2**27 + (0xE169C58D >> 6) / 2**53
    seeds = torch.tensor([1, 1 << 32, -1, -(1 << 63)])
    assert len(set(uniform(seeds, torch.zeros(4, dtype=torch.int64)).tolist())) == 4
    numbers = uniform(torch.full((20_000,), 3), torch.arange(20_000))
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(numbers.var() - 1 / 12) < 0.005


def test_distribution_at_temperature() -> None:
    logits = random_logits()
    for temperature in (0.7, 1.0, 3.0):
        exact = (logits[0].double() / temperature).softmax(-1)
        assert chi_square(many(logits, temperatures=temperature), exact) < 4


def test_top_k_top_p_and_min_p_leave_the_right_distribution() -> None:
    logits = random_logits(seed=3)
    exact = logits[0].double().softmax(-1)
    order = exact.argsort(descending=True)
    top_five = torch.zeros(V).double().index_copy(0, order[:5], exact[order[:5]])
    assert chi_square(many(logits, top_ks=5), top_five / top_five.sum()) < 4
    nucleus = int((exact[order].cumsum(0) < 0.8).sum()) + 1
    top_p = torch.zeros(V).double().index_copy(0, order[:nucleus], exact[order[:nucleus]])
    assert 2 < nucleus < V
    assert chi_square(many(logits, top_ps=0.8), top_p / top_p.sum()) < 4
    min_p = torch.where(exact < 0.1 * exact.max(), 0, exact)
    assert chi_square(many(logits, min_ps=0.1), min_p / min_p.sum()) < 4


def test_filters_apply_in_order() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert set(many(logits, 500, top_ks=3, top_ps=0.52)) == {0}, "of the three kept, the first has 0.526"
    assert set(many(logits, 500, top_ks=2, top_ps=0.63)) == {0, 1}
    assert set(many(logits, 500, temperatures=0.5, top_ps=0.7)) == {0, 1}, "the first has 0.68 at that temperature"
    assert set(many(logits, 500, temperatures=100.0, min_ps=0.99)) == {0, 1}, "min_p looks at the tempered weights"
    assert set(many(logits, 500, min_ps=0.31)) == {0, 1}


@pytest.mark.parametrize("top_k", [0, V, V + 5, 10**6])
def test_top_k_off(top_k: int) -> None:
    logits = random_logits(seed=5)
    assert many(logits, 300, top_ks=top_k) == many(logits, 300)


def test_top_p_of_a_flat_distribution_sorts_the_whole_vocabulary() -> None:
    logits = torch.zeros(1, 5_000)
    assert max(many(logits, 3_000, top_ps=0.9)) in range(4_450, 4_500), "of equals, the lowest ids are kept"
    assert max(many(logits, 3_000, top_ps=1.0 - 1e-12)) > 4_900


@pytest.mark.parametrize("columns", [{"top_ks": 1}, {"top_ps": 1e-9}, {"min_ps": 1.0}])
def test_one_token_left_is_greedy(columns: dict[str, Any]) -> None:
    logits = random_logits(50, seed=8)
    assert torch.equal(sample_tokens(logits, draws(50, temperatures=1.7, **columns)), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-9, 1e-5, 1e-4])
def test_F10_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = random_logits(50, seed=9) * 100
    assert torch.equal(sample_tokens(logits, draws(50, temperatures=temperature)), logits.argmax(-1))


def test_F10_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0]]).expand(8, -1)
    assert sample_tokens(logits, draws(8, temperatures=0.0)).tolist() == [1] * 8
    assert sample_tokens(logits, draws(8, temperatures=1e-9)).tolist() == [1] * 8
    assert set(many(logits[:1], 300, top_ks=2)) == {1, 2}


def test_F10_a_mask_of_all_but_one() -> None:
    logits = torch.full((1, V), -torch.inf)
    logits[0, 11] = -100
    assert set(many(logits, 50, top_ks=5, top_ps=0.9)) == {11}


def test_nan_and_infinity_stay_in_their_row() -> None:
    logits = random_logits(6, seed=2)
    clean = sample_tokens(logits, draws(6, temperatures=torch.tensor([1.0, 0.0] * 3)))
    logits[1] = torch.nan
    logits[2, 4] = torch.nan
    logits[3, 5] = torch.inf
    logits[4] = -torch.inf
    dirty = sample_tokens(logits, draws(6, temperatures=torch.tensor([1.0, 0.0] * 3)))
    assert dirty[0] == clean[0] and dirty[5] == clean[5]
    assert dirty[1] == 0 and dirty[2] != 4 and dirty[3] == 5 and dirty[4] == 0


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = random_logits(40, seed=4, size=5_003)
    mixed = draws(
        40,
        temperatures=torch.arange(40) % 3 * 0.7,
        top_ks=torch.arange(40) % 4 * 9,
        top_ps=1 - torch.arange(40) % 5 * 0.15,
        min_ps=torch.arange(40) % 7 * 0.01,
        seeds=torch.arange(40) * 77 - 1_000,
        counters=torch.arange(40),
    )
    together = sample_tokens(logits, mixed)
    for rows in ([3], [39, 3], [7, 8, 9, 10], list(range(39, -1, -1))):
        part = Draws(*(getattr(mixed, field.name)[rows] for field in dataclasses.fields(Draws)))
        assert torch.equal(sample_tokens(logits[rows], part), together[rows])
