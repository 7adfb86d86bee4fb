"""Penalties, bias and bans against plain Python in float64; who asks for nothing is not touched."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from kernels.adjust_logits import Adjustments, Cells, Penalties, adjust_logits


@dataclass(frozen=True)
class Asked:
    """What one row asks for."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    counts: dict[int, int] = field(default_factory=dict)
    bias: dict[int, float] = field(default_factory=dict)
    allowed: Sequence[int] = ()
    banned: Sequence[int] = ()


def expected(logits: Sequence[float], asked: Asked) -> list[float]:
    row = list(logits)
    for token, count in asked.counts.items():
        row[token] = row[token] / asked.repetition if row[token] > 0 else row[token] * asked.repetition
        row[token] -= asked.presence * (count > 0) + asked.frequency * count
    for token, bias in asked.bias.items():
        row[token] += bias
    for token in range(len(row)):
        if (asked.allowed and token not in asked.allowed) or token in asked.banned:
            row[token] = float("-inf")
    return row


def ints(values: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def cells(pairs: Sequence[tuple[int, int]]) -> Cells | None:
    return Cells(ints(row for row, _ in pairs), ints(token for _, token in pairs)) if pairs else None


def adjustments(rows: Sequence[Asked]) -> Adjustments:
    penalised = [(index, row) for index, row in enumerate(rows) if row.counts]
    biases = [(index, token, bias) for index, row in enumerate(rows) for token, bias in row.bias.items()]
    restricted = [index for index, row in enumerate(rows) if row.allowed]
    penalties = None
    if penalised:
        penalties = Penalties(
            rows=ints(index for index, _ in penalised),
            repetition=torch.tensor([row.repetition for _, row in penalised]),
            presence=torch.tensor([row.presence for _, row in penalised]),
            frequency=torch.tensor([row.frequency for _, row in penalised]),
            lengths=ints(len(row.counts) for _, row in penalised),
            token_ids=ints(token for _, row in penalised for token in row.counts),
            counts=torch.tensor([float(count) for _, row in penalised for count in row.counts.values()]),
        )
    return Adjustments(
        penalties=penalties,
        biased=cells([(index, token) for index, token, _ in biases]),
        biases=torch.tensor([bias for _, _, bias in biases]) if biases else None,
        restricted=ints(restricted) if restricted else None,
        allowed=cells([(index, token) for index, row in enumerate(rows) for token in row.allowed]),
        banned=cells([(index, token) for index, row in enumerate(rows) for token in row.banned]),
    )


def asked_by(chance: random.Random, vocab_size: int) -> Asked:
    def some() -> list[int]:
        return chance.sample(range(vocab_size), chance.randint(0, min(vocab_size, 9)))

    def maybe(value: float, off: float) -> float:
        return value if chance.random() < 0.5 else off

    return Asked(
        repetition=maybe(1.3, 1.0),
        presence=maybe(-0.75, 0.0),
        frequency=maybe(0.3, 0.0),
        counts={token: chance.randint(0, 5) for token in some()},
        bias={token: chance.uniform(-100, 100) for token in some()},
        allowed=some() if chance.random() < 0.3 else (),
        banned=some() + some(),
    )


@pytest.mark.parametrize("num_rows", [1, 2, 15, 16, 17, 33])
@pytest.mark.parametrize("vocab_size", [1, 7, 63, 257])
def test_against_plain_python(num_rows: int, vocab_size: int) -> None:
    chance = random.Random(num_rows * 1000 + vocab_size)
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(1)) * 5
    rows = [asked_by(chance, vocab_size) if chance.random() < 0.7 else Asked() for _ in range(num_rows)]
    before = logits.clone()
    adjust_logits(logits, adjustments(rows))
    for index, asked in enumerate(rows):
        want = torch.tensor(expected(before[index].double().tolist(), asked))
        torch.testing.assert_close(logits[index], want, rtol=1e-6, atol=2e-5)
        if asked == Asked():
            assert torch.equal(logits[index], before[index])


def test_a_row_is_bitwise_the_same_alone_and_among_others() -> None:
    chance = random.Random(5)
    logits = torch.randn(20, 101, generator=torch.Generator().manual_seed(2)) * 5
    rows = [asked_by(chance, 101) for _ in range(20)]
    alone = [logits[index : index + 1].clone() for index in range(20)]
    adjust_logits(logits, adjustments(rows))
    for index, row in enumerate(alone):
        adjust_logits(row, adjustments([rows[index]]))
        assert torch.equal(row[0], logits[index])


def test_repetition_moves_every_logit_down_and_nothing_is_asked_twice_of_a_token() -> None:
    logits = torch.tensor([[2.0, -2.0, 0.0, 4.0]])
    adjust_logits(logits, adjustments([Asked(repetition=2.0, presence=0.5, frequency=0.25, counts={0: 0, 1: 1, 3: 4})]))
    assert logits.tolist() == [[1.0, -4.0 - 0.75, 0.0, 2.0 - 1.5]]


def test_a_ban_wins_over_a_bias_and_over_being_allowed() -> None:
    logits = torch.zeros(1, 4)
    adjust_logits(logits, adjustments([Asked(bias={1: 100.0, 2: 3.0}, allowed=(1, 2), banned=(1, 1))]))
    assert logits.tolist() == [[float("-inf"), float("-inf"), 3.0, float("-inf")]]
