"""Text of tokens as they come, against the tokenizers' own decoding of all of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from common.errors import StartupError
from scheduler_svc.detokenizer import Detokenizer
from scheduler_svc.token_bytes import TokenBytes
from tests.scheduler.text_folders import CONTROL, EOS, IM_END, byte_level, sentencepiece

BYTES = TokenBytes(byte_level())
BYTE_LEVEL, PIECES = byte_level(), sentencepiece()
PIECE_BYTES = TokenBytes(PIECES)
EMOJI = "😀".encode()


def stream(
    token_ids: Sequence[int],
    *,
    table: TokenBytes = BYTES,
    prompt: Sequence[int] = (),
    hidden: frozenset[int] = frozenset(),
) -> list[str]:
    """The delta of each token, and what the end flushes."""
    detokenizer = Detokenizer(table, prompt, hidden)
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


def pieces(*texts: str) -> list[int]:
    return [token_id(PIECES, text) for text in texts]


def token_id(tokenizer: Tokenizer, text: str) -> int:
    found = tokenizer.token_to_id(text)
    assert found is not None
    return found


@given(st.lists(st.integers(0, 265), max_size=40), st.booleans())
def test_byte_level_equals_the_tokenizers_own_decoding(token_ids: list[int], skip: bool) -> None:
    hidden = frozenset(CONTROL.values()) if skip else frozenset()
    assert "".join(stream(token_ids, hidden=hidden)) == BYTE_LEVEL.decode(token_ids, skip_special_tokens=skip)


@given(st.text(max_size=40))
def test_byte_level_text_comes_back_in_whole_characters(text: str) -> None:
    deltas = stream(list(text.encode()))
    assert "".join(deltas) == text
    assert [delta for delta in deltas if delta] == list(text)


@given(st.text("abc helo the/<>s😀é", max_size=40))
def test_sentencepiece_equals_the_tokenizers_own_decoding(text: str) -> None:
    token_ids = PIECES.encode(text, add_special_tokens=False).ids
    assert "".join(stream(token_ids, table=PIECE_BYTES)) == PIECES.decode(token_ids, skip_special_tokens=False)


@given(st.lists(st.integers(3, 280).filter(lambda token: PIECES.id_to_token(token)), max_size=20))
def test_sentencepiece_differs_at_most_in_replacement_characters(token_ids: list[int]) -> None:
    ours, theirs = "".join(stream(token_ids, table=PIECE_BYTES)), PIECES.decode(token_ids, skip_special_tokens=False)
    if "\ufffd" in theirs:
        assert "\ufffd" in ours
    else:
        assert ours == theirs


@pytest.mark.parametrize("given_bytes", [1, 2, 3])
def test_F01_prompt_that_ends_inside_a_character_is_completed_and_not_repeated(given_bytes: int) -> None:
    prompt = b"Hello world " + EMOJI[:given_bytes]
    deltas = stream([*EMOJI[given_bytes:], *b"ok"], prompt=list(prompt))
    assert deltas == [""] * (3 - given_bytes) + ["😀", "o", "k", ""]


@pytest.mark.parametrize(
    ("output", "deltas"),
    [
        (b"ok", ["o", "k", ""]),
        (EMOJI, ["", "", "", "😀", ""]),
        (EMOJI[2:3] + b"ok", ["", "\ufffdo", "k", ""]),
        (EMOJI[2:3], ["", "\ufffd"]),
        (b"", [""]),
    ],
)
def test_F01_prompt_bytes_that_are_not_completed_are_forgotten(output: bytes, deltas: list[str]) -> None:
    assert stream(list(output), prompt=list(b"Hello " + EMOJI[:2])) == deltas


def test_F01_prompt_whose_control_token_parts_the_bytes() -> None:
    assert stream(list(EMOJI[2:]), prompt=[*EMOJI[:2], IM_END]) == ["\ufffd", "\ufffd", ""]


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (EMOJI[:3], "\ufffd"),
        (b"a" + EMOJI[:1], "a\ufffd"),
        (b"\xff\xfeb", "\ufffd\ufffdb"),
        (b"\xe2\x82b", "\ufffdb"),
        (EMOJI[:2] + EMOJI, "\ufffd😀"),
    ],
)
def test_malformed_bytes_become_one_replacement_character_each(output: bytes, text: str) -> None:
    assert "".join(stream(list(output))) == text == output.decode(errors="replace")


def test_F04_hidden_tokens_give_no_text_even_inside_a_character() -> None:
    token_ids = [*b"h", *EMOJI[:2], IM_END, *EMOJI[2:], EOS]
    assert "".join(stream(token_ids, hidden=frozenset({IM_END, EOS}))) == "h😀"
    assert "".join(stream([*b"h", IM_END, *b"i", EOS], hidden=frozenset({EOS}))) == "h<|im_end|>i"


def test_ids_without_a_token_give_no_text() -> None:
    assert stream([104, 5000, 105]) == ["h", "", "i", ""]


def test_leading_space_is_kept_where_the_text_goes_on_and_dropped_where_it_begins() -> None:
    token_ids = pieces("▁the", "▁", "lo")
    assert stream(token_ids, table=PIECE_BYTES, prompt=pieces("hel")) == [" the", " ", "lo", ""]
    assert stream(token_ids, table=PIECE_BYTES) == ["the", " ", "lo", ""]
    table = TokenBytes(sentencepiece(strip=False))
    assert stream(token_ids, table=table) == [" the", " ", "lo", ""]
    assert stream([token_id(BYTE_LEVEL, "Ġthe")]) == [" the", ""]


def test_byte_tokens_of_a_sentencepiece_vocabulary_make_characters() -> None:
    token_ids = pieces("lo", *(f"<0x{byte:02X}>" for byte in EMOJI), "lo")
    assert stream(token_ids, table=PIECE_BYTES) == ["lo", "", "", "", "😀", "lo", ""]


def test_metaspace_decoder() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"▁hi": 0, "a": 1}, merges=[]))
    tokenizer.decoder = decoders.Metaspace("▁")
    assert stream([0, 0, 1], table=TokenBytes(tokenizer)) == ["hi", " hi", "a", ""]
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="never")
    assert stream([0, 0, 1], table=TokenBytes(tokenizer)) == [" hi", " hi", "a", ""]


def test_added_tokens_outside_the_byte_alphabet_stand_for_themselves() -> None:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("  "), AddedToken("日 本")])
    first = token_id(tokenizer, "  ")
    assert stream([first, first + 1], table=TokenBytes(tokenizer)) == ["  ", "日 本", ""]


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.BPEDecoder(), None])
def test_decoder_whose_tokens_depend_on_each_other_is_refused(decoder: decoders.Decoder | None) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        tokenizer.decoder = decoder
    with pytest.raises(StartupError, match=r"tokenizer.json: a decoder of type .* is not supported"):
        TokenBytes(tokenizer)
