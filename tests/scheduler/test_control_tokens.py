"""Spellings of control tokens in long text, which is handled a stretch at a time."""

from __future__ import annotations

import pytest

from scheduler_svc import control_tokens
from scheduler_svc.control_tokens import ControlSpellings


@pytest.mark.parametrize("text", ["x<s></s>y<s>", "<s><s><s>", "<<s>>", "</s", "</s></s>", "<s", "", "<sep><s>sep>"])
@pytest.mark.parametrize("stretch", range(1, 13))
def test_stand_ins_are_the_same_however_long_a_stretch_is(
    text: str, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spellings = ControlSpellings(["<s>", "</s>", "<sep>"])
    known = spellings.stand_in(text)
    monkeypatch.setattr(control_tokens, "_STRETCH", stretch)
    assert spellings.stand_in(text) == known
    for spelling, stand_in in spellings.stand_ins.items():
        known = known.replace(stand_in, spelling)
    assert known == text


@pytest.mark.parametrize("before", range(-6, 3))
def test_spelling_over_the_edge_of_a_stretch_gets_its_stand_in(before: int) -> None:
    spellings = ControlSpellings(["<s>", "</s>", "<sep>"])
    start = "<" * (control_tokens._STRETCH + before)
    for spelling in ("<s>", "</s>", "<sep>"):
        assert spellings.stand_in(start + spelling + "<") == start + spellings.stand_ins[spelling] + "<"


def test_text_without_control_tokens_is_left_alone() -> None:
    assert ControlSpellings([]).stand_in("<s>" * control_tokens._STRETCH) == "<s>" * control_tokens._STRETCH
