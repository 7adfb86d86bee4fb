"""Which logits a bit mask leaves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels.allow_tokens import allow_by_torch, allow_on_cpu, allow_tokens

Allow = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def mask_of(tokens: set[int], vocab_size: int) -> list[int]:
    """The words of a mask, as int32."""
    words = [sum(1 << bit for bit in range(32) if 32 * word + bit in tokens) for word in range(-(-vocab_size // 32))]
    return [word - 2**32 if word >= 2**31 else word for word in words]


@pytest.fixture(params=[allow_tokens, allow_on_cpu, allow_by_torch])
def allow(request: pytest.FixtureRequest) -> Allow:
    found: Allow = request.param
    return found


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 100, 272])
def test_what_has_no_bit_becomes_impossible_in_the_rows_named(allow: Allow, vocab_size: int) -> None:
    before = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(vocab_size))
    allowed = [{0}, set(range(0, vocab_size, 3)) | {vocab_size - 1}, set()]
    logits, rows = before.clone(), [4, 0, 2]
    masks = torch.tensor([mask_of(tokens, vocab_size) for tokens in allowed], dtype=torch.int32)
    allow(logits, torch.tensor(rows), masks)
    expected = before.clone()
    for row, tokens in zip(rows, allowed, strict=True):
        for token in set(range(vocab_size)) - tokens:
            expected[row, token] = -torch.inf
    assert torch.equal(logits, expected)


def test_the_highest_bit_of_a_word_is_a_token_like_any_other(allow: Allow) -> None:
    logits = torch.zeros(1, 64)
    allow(logits, torch.tensor([0]), torch.tensor([[-(2**31), 0]], dtype=torch.int32))
    assert logits[0].isfinite().nonzero().flatten().tolist() == [31]
