"""The length of a text that alone proves it too long, for tokenizers that let it be known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from common.errors import InvalidRequest
from scheduler_svc import tokenizer
from scheduler_svc.longest_token import LongestToken, longest_token
from scheduler_svc.model_files import read_model_files
from scheduler_svc.token_bytes import TokenBytes
from tests.scheduler.text_folders import byte_alphabet, byte_level, sentencepiece, write_folder


def longest(backend: Tokenizer) -> LongestToken | None:
    return longest_token(backend, TokenBytes(backend))


def with_parts(*parts: pre_tokenizers.PreTokenizer) -> Tokenizer:
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.Sequence(list(parts))
    return backend


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)


def test_byte_level_tokenizer_has_a_longest_token() -> None:
    assert longest(byte_level()) == LongestToken(len("<|im_start|>"), dropped=b"")
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(" ", "isolated"), BYTES]
    assert longest(with_parts(*parts)) == LongestToken(len("<|im_start|>"), dropped=b"")


def test_bytes_without_a_token_prove_nothing() -> None:
    """A vocabulary without BEL and the first byte of "é": the one is dropped, the other leaves a second byte."""
    backend = byte_level()
    characters = byte_alphabet()
    vocabulary = {
        text: rank for text, rank in backend.get_vocab().items() if text not in (characters[7], characters[0xC3])
    }
    backend.model = models.BPE(vocab=vocabulary, merges=[])
    found = longest(backend)
    assert found == LongestToken(len("<|im_start|>"), dropped=b"\x07\xc3")
    assert backend.encode("\x07é\x07", add_special_tokens=False).ids == [0xA9]
    assert not found.proves_over(10, "x" * 120 + "\x07" * 10_000)
    assert not found.proves_over(10, "é" * 120)
    assert found.proves_over(10, "é" * 121 + "\x07" * 100)


def normalized() -> Tokenizer:
    backend = byte_level()
    backend.normalizer = normalizers.Strip()
    return backend


def swallowing() -> Tokenizer:
    backend = byte_level()
    backend.add_tokens([AddedToken("<pad>", lstrip=True)])
    return backend


@pytest.mark.parametrize(
    "make",
    [
        normalized,
        swallowing,
        sentencepiece,
        lambda: with_parts(pre_tokenizers.Split(" ", "removed"), BYTES),
        lambda: with_parts(pre_tokenizers.WhitespaceSplit(), BYTES),
    ],
    ids=["normalizer", "strip", "sentencepiece", "removed", "whitespace"],
)
def test_tokenizer_that_may_drop_text_has_none(make: Callable[[], Tokenizer]) -> None:
    assert longest(make()) is None


def test_F41_text_that_its_length_proves_too_long_is_not_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tokenizer.Tokenizer(read_model_files(write_folder(tmp_path)))
    monkeypatch.setattr(tokens, "_backend_ids", None)
    limit = 10_000
    most = limit * len("<|im_start|>")
    tokens.check_length("x" * most, limit)
    with pytest.raises(InvalidRequest, match=r"^the prompt has more than 10000 tokens, all that the model's context"):
        tokens.check_length("x" * (most + 1), limit)
    tokens.check_length("x" * 65_536, 64)  # short enough to be encoded whole, so that the refusal can say the number
