"""From the form that a request asks for to a grammar."""

from __future__ import annotations

from pathlib import Path

import pytest

from citybus.v1 import generation_pb2 as pb
from common.errors import InvalidRequest
from common.grammar import Grammar, GrammarKind
from common.matching import compiled, token_table
from scheduler_svc.forms import MAX_SOURCE_BYTES, Form, form_of
from tests.scheduler.text_folders import byte_level, write_folder


def form(**fields: object) -> Form | None:
    return form_of(pb.GenerateRequest(structured_output=pb.StructuredOutput(**fields)))  # type: ignore[arg-type]


def refusal(**fields: object) -> str:
    with pytest.raises(InvalidRequest) as caught:
        form(**fields)
    return str(caught.value)


def test_every_form() -> None:
    assert form_of(pb.GenerateRequest()) is None
    assert form(json_schema="{}") == Form("structured_output.json_schema", Grammar(GrammarKind.JSON_SCHEMA, "{}"))
    assert form(regex="a+") == Form("structured_output.regex", Grammar(GrammarKind.REGEX, "a+"))
    assert form(grammar="start: /a/") == Form("structured_output.grammar", Grammar(GrammarKind.LARK, "start: /a/"))
    assert form(json_object=True) == Form(
        "structured_output.json_object", Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
    )
    assert form(choice=pb.Choice(texts=['a"b', "é"])) == Form(
        "structured_output.choice", Grammar(GrammarKind.LARK, 'start: CHOICE\nCHOICE: "a\\"b" | "é"')
    )


def test_a_choice_may_have_every_character(tmp_path: Path) -> None:
    """All that grammars are written with, the edges of what is one to four bytes long, and its own rule's names."""
    text = "".join(map(chr, [*range(256), 0x7FF, 0x800, 0x2028, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFF]))
    asked = form(choice=pb.Choice(texts=[text, "start", "CHOICE"]))
    assert asked is not None
    table = token_table(write_folder(tmp_path, byte_level()), byte_level().get_vocab_size())
    matcher = compiled(table, asked.grammar)
    matcher.consume_tokens(byte_level().encode(text, add_special_tokens=False).ids)
    assert matcher.is_accepting() and not matcher.is_error()


def test_what_is_no_form() -> None:
    assert refusal() == "structured_output is empty: set json_schema, regex, choice, grammar or json_object"
    assert refusal(regex="") == "structured_output.regex is empty"
    assert refusal(json_schema="") == "structured_output.json_schema is empty"
    assert refusal(json_object=False).startswith("structured_output.json_object must be true")


def test_F58_a_form_says_where_it_can_end() -> None:
    asked = pb.GenerateRequest(structured_output=pb.StructuredOutput(regex="a+"), stopping=pb.StopParams(min_tokens=9))
    with pytest.raises(InvalidRequest, match=r"structured_output cannot be set together with stopping\.min_tokens"):
        form_of(asked)


def test_F58_size_is_bounded() -> None:
    assert form(regex="a" * MAX_SOURCE_BYTES) is not None
    expected = f"structured_output.regex has {MAX_SOURCE_BYTES + 2} bytes, and {MAX_SOURCE_BYTES} are the most"
    assert refusal(regex="é" * (MAX_SOURCE_BYTES // 2 + 1)).startswith(expected)
    assert form(choice=pb.Choice(texts=["x"] * 1024)) is not None
    assert refusal(choice=pb.Choice()) == "structured_output.choice: there must be 1 to 1024 texts, not 0"
    assert refusal(choice=pb.Choice(texts=["x"] * 1025)).endswith("there must be 1 to 1024 texts, not 1025")
    too_long = "structured_output.choice: each text must have 1 to 4096 characters"
    assert refusal(choice=pb.Choice(texts=["x", ""])) == too_long
    assert refusal(choice=pb.Choice(texts=["x" * 4097])) == too_long
    assert "bytes, and 131072 are the most" in refusal(choice=pb.Choice(texts=["x" * 4096] * 33))
