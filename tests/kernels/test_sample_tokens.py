"""Drawing tokens, by torch and by the native library: known random numbers, filters one by one, and statistics."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels import sample_tokens as reference
from kernels.cpu.library import InstructionSet, NativeLibrary, load_library
from kernels.philox import philox_4x32, uniform
from kernels.sample_tokens import Draws

V = 37
LIBRARY = load_library()
SampleTokens = Callable[[torch.Tensor, Draws], torch.Tensor]


@pytest.fixture(
    params=[None, *(LIBRARY.instruction_sets() if LIBRARY else [])], ids=lambda isa: isa.name if isa else "torch"
)
def sample_tokens(request: pytest.FixtureRequest) -> SampleTokens:
    if LIBRARY is None or request.param is None:
        return reference.sample_tokens
    return LIBRARY.threads(request.param, 2).sample_tokens


def draws(rows: int, **columns: Any) -> Draws:
    values: dict[str, Any] = {"temperatures": 1.0, "top_ks": 0, "top_ps": 1.0, "min_ps": 0.0, "seeds": 0, "counters": 0}
    dtypes = {name: torch.float64 if isinstance(value, float) else torch.int64 for name, value in values.items()}
    values |= columns
    return Draws(
        **{name: torch.as_tensor(value, dtype=dtypes[name]).expand(rows).clone() for name, value in values.items()}
    )


def many(sample_tokens: SampleTokens, logits: torch.Tensor, count: int = 4_000, **columns: Any) -> list[int]:
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


def test_distribution_at_temperature(sample_tokens: SampleTokens) -> None:
    logits = random_logits()
    for temperature in (0.7, 1.0, 3.0):
        exact = (logits[0].double() / temperature).softmax(-1)
        assert chi_square(many(sample_tokens, logits, temperatures=temperature), exact) < 4


def test_top_k_top_p_and_min_p_leave_the_right_distribution(sample_tokens: SampleTokens) -> None:
    logits = random_logits(seed=3)
    exact = logits[0].double().softmax(-1)
    order = exact.argsort(descending=True)
    top_five = torch.zeros(V).double().index_copy(0, order[:5], exact[order[:5]])
    assert chi_square(many(sample_tokens, logits, top_ks=5), top_five / top_five.sum()) < 4
    nucleus = int((exact[order].cumsum(0) < 0.8).sum()) + 1
    top_p = torch.zeros(V).double().index_copy(0, order[:nucleus], exact[order[:nucleus]])
    assert 2 < nucleus < V
    assert chi_square(many(sample_tokens, logits, top_ps=0.8), top_p / top_p.sum()) < 4
    min_p = torch.where(exact < 0.1 * exact.max(), 0, exact)
    assert chi_square(many(sample_tokens, logits, min_ps=0.1), min_p / min_p.sum()) < 4


def test_filters_apply_in_order(sample_tokens: SampleTokens) -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert set(many(sample_tokens, logits, 500, top_ks=3, top_ps=0.52)) == {0}, "of the three kept, the first has 0.526"
    assert set(many(sample_tokens, logits, 500, top_ks=2, top_ps=0.63)) == {0, 1}
    assert set(many(sample_tokens, logits, 500, temperatures=0.5, top_ps=0.7)) == {0, 1}, (
        "the first has 0.68 at that temperature"
    )
    assert set(many(sample_tokens, logits, 500, temperatures=100.0, min_ps=0.99)) == {0, 1}, (
        "min_p looks at the tempered weights"
    )
    assert set(many(sample_tokens, logits, 500, min_ps=0.31)) == {0, 1}


@pytest.mark.parametrize("top_k", [0, V, V + 5, 10**6])
def test_top_k_off(sample_tokens: SampleTokens, top_k: int) -> None:
    logits = random_logits(seed=5)
    assert many(sample_tokens, logits, 300, top_ks=top_k) == many(sample_tokens, logits, 300)


def test_top_p_of_a_flat_distribution_sorts_the_whole_vocabulary(sample_tokens: SampleTokens) -> None:
    logits = torch.zeros(1, 5_000)
    assert max(many(sample_tokens, logits, 1_000, top_ps=0.9)) in range(4_450, 4_500), (
        "of equals, the lowest ids are kept"
    )
    assert max(many(sample_tokens, logits, 1_000, top_ps=1.0 - 1e-12)) > 4_900


@pytest.mark.parametrize("columns", [{"top_ks": 1}, {"top_ps": 1e-9}, {"min_ps": 1.0}])
def test_one_token_left_is_greedy(sample_tokens: SampleTokens, columns: dict[str, Any]) -> None:
    logits = random_logits(50, seed=8)
    assert torch.equal(sample_tokens(logits, draws(50, temperatures=1.7, **columns)), logits.argmax(-1))


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-9, 1e-5, 1e-4])
def test_F10_tiny_temperatures_are_greedy(sample_tokens: SampleTokens, temperature: float) -> None:
    logits = random_logits(50, seed=9) * 100
    assert torch.equal(sample_tokens(logits, draws(50, temperatures=temperature)), logits.argmax(-1))


def test_F10_ties_go_to_the_lowest_id(sample_tokens: SampleTokens) -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0]]).expand(8, -1)
    assert sample_tokens(logits, draws(8, temperatures=0.0)).tolist() == [1] * 8
    assert sample_tokens(logits, draws(8, temperatures=1e-9)).tolist() == [1] * 8
    assert set(many(sample_tokens, logits[:1], 300, top_ks=2)) == {1, 2}


def test_F10_a_mask_of_all_but_one(sample_tokens: SampleTokens) -> None:
    logits = torch.full((1, V), -torch.inf)
    logits[0, 11] = -100
    assert set(many(sample_tokens, logits, 50, top_ks=5, top_ps=0.9)) == {11}


def test_nan_and_infinity_stay_in_their_row(sample_tokens: SampleTokens) -> None:
    logits = random_logits(6, seed=2)
    clean = sample_tokens(logits, draws(6, temperatures=torch.tensor([1.0, 0.0] * 3)))
    logits[1] = torch.nan
    logits[2, 4] = torch.nan
    logits[3, 5] = torch.inf
    logits[4] = -torch.inf
    dirty = sample_tokens(logits, draws(6, temperatures=torch.tensor([1.0, 0.0] * 3)))
    assert dirty[0] == clean[0] and dirty[5] == clean[5]
    assert dirty[1] == 0 and dirty[2] != 4 and dirty[3] == 5 and dirty[4] == 0


def test_a_row_does_not_depend_on_its_neighbours(sample_tokens: SampleTokens) -> None:
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


def native_and_reference(
    library: NativeLibrary, isa: InstructionSet, logits: torch.Tensor, **columns: Any
) -> tuple[list[int], list[int]]:
    values = draws(len(logits), counters=torch.arange(len(logits)), **columns)
    native = library.threads(isa, 1).sample_tokens(logits, values)
    return native.tolist(), reference.sample_tokens(logits, values).tolist()


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 33, 513, 2_500])
@pytest.mark.parametrize(
    "columns",
    [
        {"temperatures": 0.0},
        {},
        {"min_ps": 0.05},
        {"top_ks": 1},
        {"top_ks": 7},
        {"top_ks": 900},
        {"top_ps": 0.8},
        {"top_ps": 1e-9},
        {"top_ps": 1.0 - 1e-12},
        {"temperatures": 0.8, "top_ks": 40, "top_ps": 0.9, "min_ps": 0.02},
        {"temperatures": 30.0, "top_ks": 2_000, "top_ps": 0.5},
    ],
    ids=str,
)
def test_native_draws_are_those_of_torch(
    library: NativeLibrary, isa: InstructionSet, size: int, columns: dict[str, Any]
) -> None:
    """Only the rounding of a sum could decide otherwise: it does in none of these, nor in 80,000 others tried."""
    logits = random_logits(24, seed=size, size=size)
    logits[8:16] = logits[8:16].round()  # many ties
    logits[16:20] = torch.where(logits[16:20] < 0, -torch.inf, logits[16:20])
    logits[20:22, ::3] = torch.nan
    logits[22] = -torch.inf
    logits[23, -1] = torch.inf
    native, expected = native_and_reference(library, isa, logits, seeds=size, **columns)
    assert native == expected


def test_native_draws_of_a_whole_vocabulary(library: NativeLibrary, isa: InstructionSet) -> None:
    logits = random_logits(12, seed=1, size=49_152)
    native, expected = native_and_reference(
        library,
        isa,
        logits,
        temperatures=torch.tensor([0.0, 0.8, 0.8, 2.0]).repeat(3),
        top_ks=torch.tensor([0, 40, 0, 3_000, 0, 0]).repeat(2),
        top_ps=torch.tensor([0.9, 0.9, 0.95, 0.99, 1.0, 1.0]).double().repeat(2),
    )
    assert native == expected


def test_native_cuts_between_neighbouring_numbers(library: NativeLibrary, isa: InstructionSet) -> None:
    """Logits that differ in their last bits only, in falling and in rising order, below and above zero."""
    numbers = (torch.arange(600, dtype=torch.int32) + 0x3F7FFF00).view(torch.float32)
    logits = torch.stack([numbers, numbers.flip(0), -numbers, -numbers.flip(0)]).repeat(6, 1)
    for columns in ({"top_ks": 37}, {"top_ks": 301}, {"top_ps": 0.07}, {"top_ps": 0.5}):
        native, expected = native_and_reference(library, isa, logits, **columns)
        assert native == expected


def test_native_numbers_follow_all_bits_of_seeds_and_counters(library: NativeLibrary, isa: InstructionSet) -> None:
    seeds = torch.tensor([0, 1, 1 << 32, -1, -(1 << 63), 77, 77, 77])
    counters = torch.tensor([0, 0, 0, 0, 0, 1, 1 << 33, -1 & 0xFFFFFFFF])
    logits, values = torch.zeros(8, 5_000), draws(8, seeds=seeds, counters=counters)
    tokens = library.threads(isa, 1).sample_tokens(logits, values).tolist()
    assert tokens == (uniform(seeds, counters) * 5_000).long().tolist()
    assert len(set(tokens)) == 8


def test_threads_sample_vocabularies_of_any_size_in_turns(library: NativeLibrary, isa: InstructionSet) -> None:
    threads = library.threads(isa, 3)
    for size in (40, 3_000, 1, 700):
        logits, values = random_logits(9, size=size), draws(9, counters=torch.arange(9), top_ks=20)
        assert torch.equal(threads.sample_tokens(logits, values), reference.sample_tokens(logits, values))
    assert threads.sample_tokens(torch.zeros(0, 7), draws(0)).tolist() == []
