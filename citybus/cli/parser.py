"""The parser of the command line, whose complaints are one line that says what may have been meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

_NO_VALUE = "expected one argument"
"""How argparse ends its complaint of a flag without its value, as one seems to be whose value looks like a flag."""


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations: --api-key would be one, and show a key in the process list."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Everything has to be known: the parser of a command is asked this way, and names itself where it is not."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]  # what follows may be a secret
            self.error(f"unknown argument {name!r}{_closest(name, self._option_string_actions)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        if message.endswith(_NO_VALUE):
            flag = message.removeprefix("argument ").partition(":")[0]
            message += f", after an equals sign where it begins with a dash: {flag}=--..."
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            expected = _closest(str(value), known) or f", expected one of {', '.join(known)}"
            raise argparse.ArgumentError(action, f"unknown {value!r}{expected}")


def _closest(name: str, known: Iterable[str]) -> str:
    """A question after the one of `known` that is near; flags are not near for their dashes."""
    by_word = {each.lstrip("-"): each for each in known}
    matches = difflib.get_close_matches(name.lstrip("-"), by_word, n=1)
    return f" (did you mean {by_word[matches[0]]!r}?)" if matches else ""
