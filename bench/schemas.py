"""JSON schemas as they are met: what tools, extraction, configuration and forms ask for.

Each of `SUPPORTED` comes with a value that it describes and one that it does not; each of `UNSUPPORTED` with the
keyword that is refused and its place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Schema = dict[str, Any]


class Case(NamedTuple):
    """A schema, a value of it, and a value that is none."""

    schema: Schema
    good: Any
    bad: Any


def obj(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    """An object that has all of its properties, or the `required` ones, and no others."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False, **more}


def arr(items: Schema, **more: Any) -> Schema:
    """An array."""
    return {"type": "array", "items": items, **more}


STRING: Schema = {"type": "string"}
SHORT: Schema = {"type": "string", "maxLength": 12}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}

SUPPORTED: dict[str, Case] = {
    "sentiment": Case(
        obj({"label": {"enum": ["positive", "negative", "neutral"]}}), {"label": "neutral"}, {"label": "x"}
    ),
    "score": Case(
        obj({"score": {"type": "integer", "minimum": 1, "maximum": 5}, "reason": SHORT}),
        {"score": 4, "reason": "clear"},
        {"score": 6, "reason": "clear"},
    ),
    "person": Case(
        obj({"name": STRING, "age": {"type": "integer", "minimum": 0, "maximum": 150}, "married": FLAG}),
        {"name": "Ann", "age": 44, "married": False},
        {"name": "Ann", "age": 151, "married": False},
    ),
    "optional": Case(obj({"name": SHORT, "nick": SHORT}, ["name"]), {"name": "Bo"}, {"nick": "Bo"}),
    "nullable": Case(obj({"end": {"type": ["string", "null"], "maxLength": 8}}), {"end": None}, {"end": 1}),
    "tool call": Case(
        obj(
            {
                "name": {"const": "get_weather"},
                "arguments": obj({"city": SHORT, "unit": {"enum": ["C", "F"]}}, ["city"]),
            }
        ),
        {"name": "get_weather", "arguments": {"city": "Oslo"}},
        {"name": "get_time", "arguments": {"city": "Oslo"}},
    ),
    "one of two tools": Case(
        {
            "anyOf": [
                obj({"tool": {"const": "search"}, "query": SHORT}),
                obj({"tool": {"const": "add"}, "a": INTEGER, "b": INTEGER}),
            ]
        },
        {"tool": "add", "a": 1, "b": 2},
        {"tool": "add", "query": "x"},
    ),
    "disjoint oneOf": Case({"oneOf": [SHORT, {"type": "integer", "minimum": 0}]}, 7, -7),
    "tags": Case(obj({"tags": arr(SHORT, maxItems=3)}), {"tags": ["a", "b"]}, {"tags": ["a", "b", "c", "d"]}),
    "at least two": Case(arr(INTEGER, minItems=2, maxItems=4), [1, 2], [1]),
    "point": Case(
        {"type": "array", "prefixItems": [NUMBER, NUMBER], "items": False, "minItems": 2}, [1.5, -2e3], [1.5]
    ),
    "matrix": Case(arr(arr(NUMBER, minItems=2, maxItems=2), minItems=2, maxItems=2), [[1, 0], [0, 1]], [[1, 0], [0]]),
    "date": Case(obj({"day": {"type": "string", "format": "date"}}), {"day": "2026-11-30"}, {"day": "30.11.2026"}),
    "event": Case(
        obj({"at": {"type": "string", "format": "date-time"}, "title": SHORT}),
        {"at": "2026-11-30T12:00:00Z", "title": "call"},
        {"at": "noon", "title": "call"},
    ),
    "contact": Case(
        obj({"mail": {"type": "string", "format": "email"}, "id": {"type": "string", "format": "uuid"}}),
        {"mail": "a@example.com", "id": "123e4567-e89b-12d3-a456-426614174000"},
        {"mail": "a@example.com", "id": "7"},
    ),
    "address": Case(obj({"ip": {"type": "string", "format": "ipv4"}}), {"ip": "10.0.0.1"}, {"ip": "10.0.0"}),
    "phone": Case(
        obj({"phone": {"type": "string", "pattern": r"^\+[0-9]{6,12}$"}}), {"phone": "+4712345678"}, {"phone": "47"}
    ),
    "contains a digit": Case({"type": "string", "pattern": "[0-9]", "maxLength": 8}, "ab1", "abc"),
    "licence plate": Case({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,4}$"}, "AB-123", "A-123"),
    "length": Case({"type": "string", "minLength": 2, "maxLength": 4}, "abc", "a"),
    "price": Case(
        obj(
            {"amount": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000}, "currency": {"enum": ["EUR", "USD"]}}
        ),
        {"amount": 9.5, "currency": "EUR"},
        {"amount": 0, "currency": "EUR"},
    ),
    "even": Case({"type": "integer", "multipleOf": 2, "minimum": 0}, 4, 3),
    "step": Case({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 2}, 0.75, 0.7),
    "mixed enum": Case({"enum": [1, "one", None, True, {"a": [1]}]}, {"a": [1]}, "two"),
    "map of numbers": Case(
        {"type": "object", "additionalProperties": INTEGER, "maxProperties": 3}, {"a": 1, "b": 2}, {"a": "x"}
    ),
    "pattern properties": Case(
        {"type": "object", "patternProperties": {"^x_[a-z]{1,4}$": INTEGER}, "additionalProperties": False},
        {"x_ab": 1},
        {"y": 1},
    ),
    "free object": Case({"type": "object"}, {"a": [1, {"b": None}]}, [1]),
    "any scalar": Case({"type": ["string", "number", "boolean", "null"]}, 1.5, [1.5]),
    "anything in a list": Case(arr({}), ["a", 1, None, {"b": True}], "a"),
    "tree": Case(
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": obj({"v": INTEGER, "kids": arr({"$ref": "#/$defs/node"}, maxItems=2)}, ["v"])},
        },
        {"v": 1, "kids": [{"v": 2}, {"v": 3, "kids": []}]},
        {"v": 1, "kids": [{"kids": []}]},
    ),
    "linked list": Case(
        {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
        {"next": {"next": None}},
        {"next": 1},
    ),
    "definitions": Case(
        obj({"from": {"$ref": "#/definitions/place"}, "to": {"$ref": "#/definitions/place"}})
        | {"definitions": {"place": obj({"lat": NUMBER, "lon": NUMBER})}},
        {"from": {"lat": 1, "lon": 2}, "to": {"lat": 3.5, "lon": -4}},
        {"from": {"lat": 1, "lon": 2}, "to": {"lat": 3.5}},
    ),
    "all of": Case(
        {"allOf": [obj({"a": INTEGER, "b": SHORT}, ["a"]), {"required": ["b"]}]}, {"a": 1, "b": "x"}, {"a": 1}
    ),
    "either key": Case(
        {**obj({"mail": SHORT, "phone": SHORT}, []), "anyOf": [{"required": ["mail"]}, {"required": ["phone"]}]},
        {"phone": "1"},
        {},
    ),
    "invoice": Case(
        obj(
            {
                "number": {"type": "string", "pattern": "^INV-[0-9]{4}$"},
                "lines": arr(
                    obj({"text": SHORT, "count": {"type": "integer", "minimum": 1}, "price": NUMBER}), minItems=1
                ),
                "paid": FLAG,
            }
        ),
        {"number": "INV-0001", "lines": [{"text": "bus", "count": 1, "price": 9.99}], "paid": True},
        {"number": "INV-0001", "lines": [], "paid": True},
    ),
    "deep": Case(
        obj({"a": obj({"b": obj({"c": obj({"d": arr(obj({"e": FLAG}))})})})}), {"a": {"b": {"c": {"d": []}}}}, {"a": {}}
    ),
    "long enum": Case({"enum": [f"country {number}" for number in range(250)]}, "country 17", "country 250"),
    "wide": Case(
        obj({f"field_{number}": SHORT for number in range(60)}, ["field_0"]),
        {"field_0": "a", "field_59": "b"},
        {"field_1": "a"},
    ),
    "annotated": Case(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "A reply",
            **obj({"ok": {"type": "boolean", "description": "Whether it worked", "default": True, "examples": [True]}}),
        },
        {"ok": True},
        {"ok": "yes"},
    ),
    "unicode": Case(obj({"näme": {"enum": ["Zoë", "李", "😀"]}}), {"näme": "李"}, {"näme": "Li"}),
}

UNSUPPORTED: dict[str, tuple[Schema, str, str]] = {
    "unique items": (obj({"tags": arr(STRING, uniqueItems=True)}), "uniqueItems", "#/properties/tags"),
    "not": ({"not": STRING}, "not", "#"),
    "if": (obj({"a": {"if": STRING, "then": SHORT}}), "if", "#/properties/a"),
    "contains": ({"type": "array", "contains": INTEGER}, "contains", "#"),
    "property names": ({"type": "object", "propertyNames": SHORT}, "propertyNames", "#"),
    "dependent required": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired", "#"),
    "unevaluated": ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties", "#"),
    "dynamic reference": ({"anyOf": [INTEGER, {"$dynamicRef": "#a"}]}, "$dynamicRef", "#/anyOf/1"),
    "OpenAPI's nullable": (obj({"a/b": {"type": "string", "nullable": True}}), "nullable", "#/properties/a~1b"),
    "content": ({"type": "string", "contentEncoding": "base64"}, "contentEncoding", "#"),
    "of the library": ({"type": "array", "x-guidance": {"lenient": True}}, "x-guidance", "#"),
    "mistyped": ({"$defs": {"a": {"type": "string", "maxLenght": 3}}, "$ref": "#/$defs/a"}, "maxLenght", "#/$defs/a"),
}
