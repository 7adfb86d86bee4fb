"""Parameters of a policy as text, the way operators write them."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

_BOOLS = {"true": True, "false": False}


def _mapping(text: str) -> dict[str, float]:
    pairs = (part.partition("=") for part in text.split(",") if part)
    return {key.strip(): float(value) for key, _, value in pairs}


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "an integer"),
    float: (float, "a number"),
    bool: (_BOOLS.__getitem__, "true or false"),
    str: (str, "a text"),
    Mapping[str, float]: (_mapping, "numbers by name, as a=1,b=2"),
}


def parse(kind: type[Any], given: Mapping[str, str]) -> Any:
    """The dataclass `kind` with the fields `given`. Raises ValueError with a line that names what is wrong."""
    hints = typing.get_type_hints(kind)
    fields = {field.name for field in dataclasses.fields(kind)}
    values = {}
    for name, text in given.items():
        if name not in fields:
            known = ", ".join(sorted(fields)) or "none"
            raise ValueError(f"there is no parameter {name!r}; there are: {known}")
        read, expected = _READERS[hints[name]]
        try:
            values[name] = read(text)
        except (ValueError, KeyError):
            raise ValueError(f"{name}: expected {expected}, got {text!r}") from None
    return kind(**values)


def show(parameters: Any) -> dict[str, str]:
    """The fields of a parameter dataclass as `parse` reads them."""
    return {field.name: _text(getattr(parameters, field.name)) for field in dataclasses.fields(parameters)}


def check(kind: type[Any]) -> None:
    """Raises ValueError unless `kind` is a frozen dataclass of types that can be written, with defaults for all."""
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise ValueError("Parameters must be a frozen dataclass")
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if hints[field.name] not in _READERS:
            allowed = "int, float, bool, str and Mapping[str, float]"
            raise ValueError(f"parameter {field.name} is of a type that cannot be written: there are {allowed}")
    try:
        kind()
    except TypeError as error:
        raise ValueError(f"every parameter needs a default: {error}") from None


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{key}={repr(number).removesuffix('.0')}" for key, number in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
