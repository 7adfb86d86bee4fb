"""The library keeps to the schemas that are served: it lets every value of theirs through, and no other."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from llguidance import LLTokenizer

from bench.schemas import SUPPORTED, Case
from common.grammar import Grammar, GrammarKind
from common.matching import GrammarError, compiled, token_table
from scheduler_svc.schema_keywords import check_schema
from tests.checkpoints import VOCAB_SIZE, write_tiny


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    return token_table(write_tiny(tmp_path_factory.mktemp("model") / "tiny"), VOCAB_SIZE)


def takes(table: LLTokenizer, kind: GrammarKind, source: str, text: str) -> bool:
    matcher = compiled(table, Grammar(kind, source))
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


@pytest.mark.parametrize("case", SUPPORTED.values(), ids=SUPPORTED)
def test_a_schema_takes_its_values_and_no_others(table: LLTokenizer, case: Case) -> None:
    jsonschema.Draft202012Validator.check_schema(case.schema)
    jsonschema.validate(case.good, case.schema)
    source = json.dumps(case.schema)
    check_schema(source)

    def takes_value(value: Any, indent: int | None) -> bool:
        return takes(table, GrammarKind.JSON_SCHEMA, source, json.dumps(value, ensure_ascii=False, indent=indent))

    assert takes_value(case.good, None) and takes_value(case.good, 2)
    assert not takes_value(case.bad, None)


def test_spaces_within_json_are_bounded(table: LLTokenizer) -> None:
    def takes_gap(size: int) -> bool:
        return takes(table, GrammarKind.JSON_SCHEMA, '{"type":"object"}', '{"a":' + size * " " + "1}")

    assert takes_gap(16) and not takes_gap(17)


def test_an_error_is_one_line_and_not_long(table: LLTokenizer) -> None:
    with pytest.raises(GrammarError) as caught:
        compiled(table, Grammar(GrammarKind.REGEX, "a" * 10_000 + "("))
    assert len(str(caught.value)) <= 300 and "\n" not in str(caught.value)
