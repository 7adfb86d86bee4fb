"""Schemas that are refused, and the place that the refusal names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.schemas import UNSUPPORTED
from scheduler_svc.schema_keywords import MAX_DEPTH, MAX_PROPERTIES, UnsupportedSchema, check_schema


def refusal(schema: Any) -> str:
    with pytest.raises(UnsupportedSchema) as caught:
        check_schema(schema if isinstance(schema, str) else json.dumps(schema))
    return str(caught.value)


@pytest.mark.parametrize(("schema", "keyword", "place"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_F58_unsupported_keyword_is_named_with_its_place(schema: Any, keyword: str, place: str) -> None:
    assert refusal(schema) == f'the keyword "{keyword}" at {place} is not supported: leave it out'


@pytest.mark.parametrize("where", ["patternProperties", "$defs", "definitions", "prefixItems", "allOf", "items"])
def test_keywords_are_looked_at_wherever_a_schema_can_stand(where: str) -> None:
    inner: Any = {"not": {}}
    schema, place = {
        "prefixItems": ({where: [{}, inner]}, "/1"),
        "allOf": ({where: [{}, inner]}, "/1"),
        "items": ({where: inner}, ""),
    }.get(where, ({where: {"a": {}, "b": inner}}, "/b"))
    assert refusal(schema) == f'the keyword "not" at #/{where}{place} is not supported: leave it out'


def test_names_of_properties_and_plain_values_are_no_keywords() -> None:
    check_schema('{"properties": {"not": {"const": {"not": 1}}}, "enum": [{"if": []}], "default": {"contains": 1}}')


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": []}, "at #/properties: it must be an object of schemas"),
        ({"anyOf": []}, "at #/anyOf: it must be a list of schemas, at least one"),
        ({"anyOf": {}}, "at #/anyOf: it must be a list of schemas, at least one"),
        ({"items": [{}]}, "at #/items: a list of schemas is not supported here: use prefixItems"),
        ({"minimum": "1"}, "at #/minimum: it must be a number"),
        ({"exclusiveMinimum": True}, "at #/exclusiveMinimum: it must be a number"),
        ({"maxLength": -1}, "at #/maxLength: it must be 0 or more"),
        ({"minItems": 1.5}, "at #/minItems: it must be 0 or more"),
        ({"items": {"format": "unknown"}}, "at #/items/format: this format is not supported; these are: date-time,"),
        ({"format": []}, "at #/format: this format is not supported"),
        ({"$ref": "https://example.com/a"}, "at #/$ref: only references within the schema are supported"),
        ({"allOf": [5]}, "at #/allOf/0: a schema must be an object, true or false"),
        ([], "at #: the whole schema must be an object"),
        (True, "at #: the whole schema must be an object"),
        ("{", "it is not JSON: Expecting property name"),
        ('{"maximum": NaN}', "it is not JSON: NaN is no JSON number"),
        ('{"maximum": ' + "9" * 5000 + "}", "it is not JSON: a number has 5000 digits: use fewer"),
        ("", "it is not JSON"),
        ({"a\n" + "b" * 100_000: 1}, 'the keyword "a\\n' + "b" * 62 + '" at # is not supported'),
    ],
)
def test_what_is_wrong_is_said_with_its_place(schema: Any, expected: str) -> None:
    assert refusal(schema).startswith(expected)
    assert len(refusal(schema)) < 400


def nested(depth: int) -> str:
    return '{"items":' * depth + "true" + "}" * depth


def test_F58_depth_is_bounded() -> None:
    check_schema(nested(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, 10_000, 100_000):
        assert refusal(nested(depth)) == f"it is nested deeper than {MAX_DEPTH} schemas: make it flatter"


def test_number_of_properties_is_bounded() -> None:
    def properties(count: int) -> dict[str, Any]:
        return {"properties": {f"p{number}": True for number in range(count)}}

    check_schema(json.dumps(properties(MAX_PROPERTIES)))
    assert refusal(properties(MAX_PROPERTIES + 1)) == (
        "at #/properties: an object may have at most 256 properties, not 257"
    )
