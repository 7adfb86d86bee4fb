"""How much text one operation of a template can make, told before it runs.

A single call into C code cannot be interrupted, and a width ('%300000000d' % 1), a replacement, or a list that holds
one long text a thousand times makes gigabytes out of a few characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_NUMBER = re.compile(r"\d+")
_NESTED_FIELD = re.compile(r"\{[^{}]*\{")
_MAX_DIGITS = 18  # more are too many characters, whatever they are

Weigh = Callable[[Any], int]
"""Characters that a value takes once it is written, with everything it holds."""


def growth(name: str, subject: Any, args: Sequence[Any], kwargs: Mapping[str, Any], weigh: Weigh) -> int:
    """The most characters or items that the method or filter `name` of `subject` makes."""
    values = (*args, *kwargs.values())
    match name:
        case "center" | "ljust" | "rjust" | "zfill" | "wordwrap" | "truncate" | "batch" | "slice" | "round":
            return _sum_of_numbers(values)
        case "string" | "tojson" | "pprint" | "urlize" | "xmlattr" | "escape" | "e" | "forceescape":
            return weigh(subject) + _sum_of_numbers(values)
        case "format" | "format_map":
            form = str(subject)
            return max(percent_growth(form, values, weigh), _braces_growth(form, values, weigh))
        case "replace":
            return (str(subject).count(str(values[0])) + 1) * weigh(values[1:])
        case "translate":
            return len(subject) * weigh(values)
        case "join":
            items, separators = (values[:1], [subject]) if isinstance(subject, str) else (subject, values)
            return weigh(items) + _length(items) * weigh(separators)
        case "indent" | "expandtabs":
            places = sum(map(str(subject).count, "\n\t")) + 1
            return places * (_sum_of_numbers(values) + weigh(values))
    return 0


def percent_growth(form: str, values: Any, weigh: Weigh) -> int:
    """The most characters that `form % values` adds to `form`."""
    widths = _sum_of_numbers(values if isinstance(values, tuple) else [values]) if "*" in form else 0
    return _sum_of_digits(form) + widths + form.count("%") * weigh(values)


def _braces_growth(form: str, values: Sequence[Any], weigh: Weigh) -> int:
    widths = _sum_of_numbers(values) if _NESTED_FIELD.search(form) else 0
    return _sum_of_digits(form) + widths + form.count("{") * weigh(values)


def _sum_of_digits(form: str) -> int:
    return sum(int(number[:_MAX_DIGITS]) for number in _NUMBER.findall(form))


def _sum_of_numbers(values: Iterable[Any]) -> int:
    return sum(abs(value) for value in values if isinstance(value, int))


def _length(items: Any) -> int:
    return len(items[0]) if isinstance(items, tuple) and hasattr(items[0], "__len__") else len(items)
