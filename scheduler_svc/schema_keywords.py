"""Which JSON schemas are served: those all of whose keywords are.

The library that follows a schema does not know every keyword, and passes over some that it does not know. A keyword
that is not named here is refused with its place, so that what an answer is held to is what was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

MAX_DEPTH = 64
MAX_PROPERTIES = 256
"""Of one object; the work of a step grows with them."""

FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"]

_ANNOTATIONS = [
    "$schema",
    "$id",
    "$comment",
    "$anchor",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
]
_NUMBERS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
_COUNTS = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]
_MAPS = ["properties", "patternProperties", "$defs", "definitions"]
_LISTS = ["anyOf", "oneOf", "allOf", "prefixItems"]
_SCHEMAS = ["items", "additionalProperties"]
_OTHERS = ["type", "enum", "const", "$ref", "required", "pattern", "format"]
_KNOWN = frozenset((*_ANNOTATIONS, *_NUMBERS, *_COUNTS, *_MAPS, *_LISTS, *_SCHEMAS, *_OTHERS))

_MAX_NAME_CHARACTERS = 64
_MAX_PLACE_CHARACTERS = 200


class UnsupportedSchema(Exception):
    """The schema is wrong, or has something that is not served; says what, and where."""


def check_schema(text: str) -> None:
    """Raise `UnsupportedSchema` unless `text` is a JSON schema with supported keywords only."""
    try:
        schema = json.loads(text, parse_constant=_no_constant, parse_int=_integer)
    except RecursionError:
        raise UnsupportedSchema(_too_deep()) from None
    except ValueError as error:
        raise UnsupportedSchema(f"it is not JSON: {error}") from error
    if not isinstance(schema, dict):
        _refuse("the whole schema must be an object", "#")
    pending: list[tuple[Any, str, int]] = [(schema, "#", 0)]
    while pending:
        node, place, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise UnsupportedSchema(_too_deep())
        pending += [(inner, where, depth + 1) for inner, where in _inner(node, place)]


def _inner(node: Any, place: str) -> Iterator[tuple[Any, str]]:
    """The schemas directly within `node`, and their places; checks its own keywords."""
    if isinstance(node, bool):
        return
    if not isinstance(node, dict):
        _refuse("a schema must be an object, true or false", place)
    for keyword, value in node.items():
        where = f"{place}/{_pointer(keyword)}"
        if keyword not in _KNOWN:
            raise UnsupportedSchema(f'the keyword "{_shown(keyword)}" at {_cut(place)} is not supported: leave it out')
        _check_value(keyword, value, where)
        if keyword in _MAPS:
            yield from ((inner, f"{where}/{_pointer(name)}") for name, inner in value.items())
        elif keyword in _LISTS:
            yield from ((inner, f"{where}/{index}") for index, inner in enumerate(value))
        elif keyword in _SCHEMAS:
            yield value, where


def _check_value(keyword: str, value: Any, place: str) -> None:
    """Refuse values that the library would read in another way, or pass over."""
    if keyword in _MAPS and not isinstance(value, dict):
        _refuse("it must be an object of schemas", place)
    if keyword in _LISTS and not (isinstance(value, list) and value):
        _refuse("it must be a list of schemas, at least one", place)
    if keyword == "items" and isinstance(value, list):
        _refuse("a list of schemas is not supported here: use prefixItems", place)
    if keyword in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
        _refuse("it must be a number", place)
    if keyword in _COUNTS and not (type(value) is int and value >= 0):
        _refuse("it must be 0 or more", place)
    if keyword == "format" and value not in FORMATS:
        _refuse(f"this format is not supported; these are: {', '.join(FORMATS)}", place)
    if keyword == "properties" and len(value) > MAX_PROPERTIES:
        _refuse(f"an object may have at most {MAX_PROPERTIES} properties, not {len(value)}", place)
    if keyword == "$ref" and not (isinstance(value, str) and value.startswith("#")):
        _refuse("only references within the schema are supported: they begin with #", place)


def _refuse(reason: str, place: str) -> NoReturn:
    raise UnsupportedSchema(f"at {_cut(place)}: {reason}")


def _integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # what Python says is for who runs it
        raise ValueError(f"a number has {len(digits)} digits: use fewer") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _too_deep() -> str:
    return f"it is nested deeper than {MAX_DEPTH} schemas: make it flatter"


def _pointer(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return _shown(name.replace("~", "~0").replace("/", "~1"))


def _shown(name: str) -> str:
    return json.dumps(name[:_MAX_NAME_CHARACTERS])[1:-1]


def _cut(place: str) -> str:
    return place if len(place) <= _MAX_PLACE_CHARACTERS else place[:_MAX_PLACE_CHARACTERS] + "..."
