"""Forms that are hostile, too large, wrong or not supported: each gets a valid answer or a clear refusal, and whoever
else is served does not notice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import jsonschema
import pytest

from bench.schemas import UNSUPPORTED
from citybus import CitybusError, FinishReason, InvalidRequest
from citybus.v1 import generation_pb2 as pb
from tests.e2e.field_cases.field import Field
from tests.e2e.field_cases.wire import field as wire_field
from tests.e2e.field_cases.wire import send, status

SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 11, "ignore_eos": False}
PASSENGER = [70, 71, 72]
GROWTH_MIB = 256


def nested_one_of(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for level in range(depth):
        key = f"k{level}"
        inner = {"type": "object", "properties": {key: schema}, "required": [key], "additionalProperties": False}
        schema = {"oneOf": [{"type": "null"}, inner]}
    return schema


VALID: dict[str, dict[str, Any]] = {
    "oneOf nested 30 deep": nested_one_of(30),
    "recursive reference": {
        "type": "object",
        "properties": {"v": {"type": "boolean"}, "next": {"$ref": "#"}},
        "required": ["v"],
        "additionalProperties": False,
    },
    "10,000 values": {"enum": [f"v{number}" for number in range(10_000)]},
    "(a+)+$": {"type": "string", "pattern": "(a+)+$", "maxLength": 20},
    "a million characters": {"type": "string", "maxLength": 1_000_000},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "1 MB": ({"json_schema": {"enum": ["x" * 1_000_000]}}, "131072 are the most"),
    "10 MB": ({"json_schema": {"enum": ["x" * 10_000_000]}}, "131072 are the most"),
    "nested 10,000 deep": ({"json_schema": '{"items":' * 10_000 + "{}" + "}" * 10_000}, "deeper than 64"),
    "a reference to itself": ({"json_schema": {"$ref": "#"}}, "no text of this form"),
    "a ring of references": (
        {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}},
        "no text of this form",
    ),
    "a reference to the network": ({"json_schema": {"$ref": "http://127.0.0.1/x"}}, "references within the schema"),
    "a reference to nowhere": ({"json_schema": {"$ref": "#/$defs/a"}}, "structured_output.json_schema: "),
    "no schema": ({"json_schema": {"type": "strin"}}, "strin"),
    "no JSON": ({"json_schema": '{"type": "string"'}, "it is not JSON"),
    "nothing fits": ({"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}}, "nsatisfiable"),
    "overlapping oneOf": ({"json_schema": {"oneOf": [{"minLength": 1}, {"maxLength": 4}]}}, "oneOf"),
    "wide": ({"json_schema": {"properties": {f"p{n}": {} for n in range(300)}}}, "at most 256 properties"),
    "look-ahead": ({"regex": "(?=a)b"}, "look-around"),
    "a back reference": ({"regex": r"(a+)\1"}, "backreferences are not supported"),
    "unclosed": ({"regex": "(a"}, "unclosed group"),
    "parentheses": ({"regex": "(" * 50_000 + "a" + ")" * 50_000}, "structured_output.regex: "),
    "grammar without an end": ({"grammar": 'start: "a" start'}, "structured_output.grammar: "),
    "parentheses in a grammar": ({"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000}, "nested"),
    "no grammar": ({"grammar": "stop: /a/"}, "structured_output.grammar: "),
    "no choice": ({"choice": []}, "1 to 1024 texts, not 0"),
    "2,000 choices": ({"choice": [str(number) for number in range(2_000)]}, "1 to 1024 texts, not 2000"),
    "no end": ({"regex": "a", "ignore_eos": True}, "needs a token that ends the answer"),
}


@contextmanager
def unhurt(field: Field) -> Iterator[None]:
    """Somebody rides all the while, and gets every token."""
    expected = field.reference(PASSENGER, 200)
    before = memory_mib(field.bus.scheduler.process.pid)
    ride = field.start(PASSENGER, 200)
    ride.read_some(1)
    yield
    assert ride.read().token_ids == expected
    assert memory_mib(field.bus.scheduler.process.pid) - before < GROWTH_MIB


def memory_mib(pid: int) -> int:
    """The most that a process and its children have had in memory."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{each}/status").read_text()) for each in (pid, *children)]
    return sum(int(match[1]) // 1024 for match in found if match)


@pytest.mark.parametrize("schema", VALID.values(), ids=VALID)
def test_F58_unusual_schema_gets_a_valid_answer(tiny_field: Field, schema: dict[str, Any]) -> None:
    with unhurt(tiny_field):
        answer = tiny_field.ask([8, 9], 200, json_schema=schema, **SAMPLED)
    if answer.finish.reason is FinishReason.STOP:
        jsonschema.validate(json.loads(answer.text), schema)
    else:
        assert answer.finish.reason is FinishReason.LENGTH and len(answer.token_ids) == 200


REGEXES = {
    "a plus of a plus": ("(a+)+b{3}", "a+b{0,3}"),
    "nested counted repeats": ("((((a{1,999}b?){1,999}c?){1,999}d?){1,999}e?){1,999}", "[a-e]+"),
    "a large counted repeat": ("[ab]{1000000}", "[ab]+"),
    "a late choice": ("(a|b)*a(a|b){20}c", "[ab]+c?"),
}


@pytest.mark.parametrize(("source", "beginning"), REGEXES.values(), ids=REGEXES)
def test_F58_costly_regex_is_followed_or_ends_alone(tiny_field: Field, source: str, beginning: str) -> None:
    with unhurt(tiny_field):
        try:
            answer = tiny_field.ask([8, 9], 60, regex=source, **SAMPLED)
        except CitybusError as error:
            assert "structured_output.regex: " in str(error) or "cannot be held to its form" in str(error)
        else:
            assert re.fullmatch(beginning, answer.text)


@pytest.mark.parametrize(("options", "words"), REFUSED.values(), ids=REFUSED)
def test_F58_hostile_or_wrong_form_is_refused(tiny_field: Field, options: dict[str, Any], words: str) -> None:
    with unhurt(tiny_field), pytest.raises(InvalidRequest) as caught:
        tiny_field.ask([8, 9], 20, **SAMPLED | options)
    message = str(caught.value)
    assert words in message and "structured_output" in message
    assert len(message) < 600


@pytest.mark.parametrize(("schema", "keyword", "place"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_F58_unsupported_keyword_is_refused_by_name(
    tiny_field: Field, schema: dict[str, Any], keyword: str, place: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tiny_field.ask([8, 9], 20, json_schema=schema, **SAMPLED)
    expected = f'structured_output.json_schema: the keyword "{keyword}" at {place} is not supported: leave it out'
    assert expected in str(caught.value)


def test_F58_answer_that_is_cut_off(tiny_field: Field) -> None:
    answer = tiny_field.ask([8, 9], 3, json_schema={"type": "object", "required": ["name"]}, **SAMPLED)
    assert (answer.finish.reason, len(answer.token_ids)) == (FinishReason.LENGTH, 3)
    assert answer.text.startswith("{")


@pytest.mark.parametrize("kind", [1, 2, 4])
def test_F58_bytes_that_are_no_text(tiny_field: Field, kind: int) -> None:
    request = pb.GenerateRequest(text="hi").SerializeToString() + wire_field(17, wire_field(kind, b'{"a\xff'))
    with status(grpc.StatusCode.INVALID_ARGUMENT):
        send(tiny_field.bus.address, request)


def test_F58_a_form_of_the_wrong_type_or_none(tiny_field: Field) -> None:
    for content, words in ((b"", "structured_output is empty"), (b"\x28\x00", "json_object must be true")):
        request = pb.GenerateRequest(text="hi").SerializeToString() + wire_field(17, content)
        with status(grpc.StatusCode.INVALID_ARGUMENT, words):
            send(tiny_field.bus.address, request)
