"""Log-probabilities against float64, of any number of rows, tokens and likeliest ones."""

from __future__ import annotations

import pytest
import torch

from kernels.token_logprobs import Logprobs, token_logprobs


def row_of(found: Logprobs, row: int) -> list[torch.Tensor]:
    return [found.logprobs[row], found.ranks[row], found.top_ids[row], found.top_logprobs[row]]


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 65])
@pytest.mark.parametrize("vocab_size", [1, 17, 257])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_against_a_sorted_float64_softmax(rows: int, vocab_size: int, num_top: int) -> None:
    generator = torch.Generator().manual_seed(rows * vocab_size + num_top)
    logits = torch.randint(-30, 30, (rows, vocab_size), generator=generator) / 4.0  # many are equal
    token_ids = torch.randint(0, vocab_size, (rows,), generator=generator)
    found = token_logprobs(logits, torch.arange(rows), token_ids, num_top)
    for row in range(rows):
        expected = logits[row].double().log_softmax(-1).tolist()
        order = sorted(range(vocab_size), key=lambda token: (-expected[token], token))
        chosen = int(token_ids[row])
        assert found.logprobs[row].item() == pytest.approx(expected[chosen], abs=1e-5)
        assert int(found.ranks[row]) == order.index(chosen) + 1
        assert found.top_ids[row].tolist() == order[:num_top]
        assert found.top_logprobs[row].tolist() == pytest.approx([expected[each] for each in order[:num_top]], abs=1e-5)


def test_a_row_is_the_same_alone_and_among_others() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(70, 1001, generator=generator) * 5
    token_ids = torch.randint(0, 1001, (70,), generator=generator)
    together = token_logprobs(logits, torch.arange(70), token_ids, 20)
    for row in (0, 31, 32, 69):
        alone = token_logprobs(logits, torch.tensor([row]), token_ids[row : row + 1], 20)
        for one, other in zip(row_of(alone, 0), row_of(together, row), strict=True):
            assert torch.equal(one, other)


def test_what_is_no_number_is_the_least_likely_and_nothing_becomes_infinite() -> None:
    logits = torch.tensor([[0.0, float("nan"), float("-inf"), 1.0]])
    found = token_logprobs(logits, torch.tensor([0]), torch.tensor([1]), 4)
    assert found.top_ids.tolist() == [[3, 0, 1, 2]]
    assert found.ranks.tolist() == [3]
    assert found.top_logprobs.isfinite().all()
    assert found.logprobs.isfinite().all()
