"""A prompt may end inside a character: the answer completes it, and never repeats the prompt."""

from __future__ import annotations

import pytest

from tests.e2e.field_cases.conftest import EMOJI
from tests.e2e.field_cases.field import Field


@pytest.mark.parametrize("given", [1, 2, 3])
def test_F01_answer_completes_the_character_the_prompt_began(chain_field: Field, given: int) -> None:
    prompt = [*b"Hello world ", *EMOJI[:given]]
    with chain_field.client.generate(token_ids=prompt, temperature=0) as stream:
        deltas = [delta.text for delta in stream]
    assert "".join(deltas) == "😀ok"
    assert not any("Hello" in delta or "�" in delta for delta in deltas)
    assert chain_field.client.complete(token_ids=prompt, temperature=0).text == "😀ok"


def test_F01_bytes_of_the_prompt_that_nothing_completes_are_forgotten(chain_field: Field) -> None:
    completion = chain_field.client.complete(token_ids=[*b"Hello world ", 0xE2], temperature=0)
    assert completion.text == "xy"


def test_F01_character_cut_off_by_the_limit_is_one_replacement_character(chain_field: Field) -> None:
    completion = chain_field.client.complete(token_ids=[*b"Hello world ", EMOJI[0]], temperature=0, max_tokens=2)
    assert completion.text == "�"
    assert completion.token_ids == tuple(EMOJI[1:3])
