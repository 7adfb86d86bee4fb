"""A service's configuration: a frozen dataclass, filled from its defaults, a TOML file, the environment and flags.

A later source wins over an earlier one. Whatever a source says that no option answers to is an error, never ignored:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        \"""What the service does, in one line for --help.\"""

        model: Path = option(REQUIRED, "model folder")
        grace: float = option(30.0, "how long running requests may go on after SIGTERM", unit="seconds")
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from common.errors import StartupError

REQUIRED: Any = dataclasses.MISSING
"""The `default` of an option that has none."""

Config = TypeVar("Config")

_NOUNS = {int: "an integer", float: "a number", bool: "true or false", str: "a text", Path: "a path"}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def option(default: Any, help: str, *, unit: str = "", choices: Sequence[str] = ()) -> Any:
    """A field of a configuration class: an int, float, bool, str or Path, or one of these or None.

    `REQUIRED` as `default` makes the option one that must be given. None is written "none" in every source.
    """
    return dataclasses.field(default=default, metadata={"help": help, "unit": unit, "choices": tuple(choices)})


def flag_of(name: str) -> str:
    """The flag of the option `name`: how messages name it, wherever its value came from."""
    return "--" + name.replace("_", "-")


def load(cls: type[Config], argv: Sequence[str], environ: Mapping[str, str], *, prog: str, env_prefix: str) -> Config:
    """The configuration that `argv` (without the program's name), `environ` and the file named in either give.

    An option `queue_limit` is `queue_limit` in the file, `<env_prefix>_QUEUE_LIMIT` in the environment and
    `--queue-limit` as a flag. Raises `StartupError` with one line that names what is wrong; a `ValueError` of the
    class's own `__post_init__` becomes one too. `--help` prints every option and exits with 0.
    """
    options = _options(cls, env_prefix)
    file_option = _Option("config", Path, True, None, "TOML file with any of these options", "", (), env_prefix)
    flags = _read_flags((file_option, *options), argv, prog, cls.__doc__)
    variables = _read_environ((file_option, *options), environ, env_prefix)
    path = flags.pop("config", variables.pop("config", None))
    values = (_read_file(options, path) if path else {}) | variables | flags
    for missing in (known for known in options if known.default is REQUIRED and known.name not in values):
        raise StartupError(f"{missing.flag} is missing: {missing.help} (or set {missing.variable})")
    try:
        return cls(**values)
    except ValueError as error:
        raise StartupError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Option:
    """One option; `kind` is its type without the None of an `optional` one."""

    name: str
    kind: type
    optional: bool
    default: Any
    help: str
    unit: str
    choices: tuple[str, ...]
    env_prefix: str

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def variable(self) -> str:
        return f"{self.env_prefix}_{self.name.upper()}"

    def parse(self, text: str, source: str) -> Any:
        """The value `text` stands for; `source` is how the user knows the option."""
        if self.optional and text.lower() == "none":
            return None
        try:
            value = _BOOLS[text.lower()] if self.kind is bool else self.kind(text)
        except (ValueError, KeyError):
            raise StartupError(f"{source}: expected {self.expected}, got {text!r}") from None
        return self.check(value, source)

    def check(self, value: Any, source: str) -> Any:
        """`value`, of the option's own type. Raises `StartupError` where it has another."""
        if self.optional and value == "none":
            return None
        if self.kind is Path and isinstance(value, str):
            value = Path(value)
        elif self.kind is float and type(value) is int:
            value = float(value)
        good = isinstance(value, Path) if self.kind is Path else type(value) is self.kind
        if (
            not good
            or (self.kind is float and not math.isfinite(value))
            or (self.choices and value not in self.choices)
        ):
            raise StartupError(f"{source}: expected {self.expected}, got {value!r}")
        return value

    @property
    def expected(self) -> str:
        noun = "one of " + ", ".join(self.choices) if self.choices else _NOUNS[self.kind]
        return noun + (" or none" if self.optional else "")

    @property
    def description(self) -> str:
        default = "required" if self.default is REQUIRED else f"default: {_show(self.default)}"
        return f"{self.help}{f', in {self.unit}' if self.unit else ''} ({default}; {self.variable})".replace("%", "%%")


def _show(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value) or '""'


def _options(cls: type, env_prefix: str) -> tuple[_Option, ...]:
    hints = typing.get_type_hints(cls)
    return tuple(_option(field, hints[field.name], env_prefix) for field in dataclasses.fields(cls))


def _option(field: dataclasses.Field[Any], hint: Any, env_prefix: str) -> _Option:
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [part for part in parts if part is not types.NoneType]
    if len(kinds) != 1 or kinds[0] not in _NOUNS:
        raise TypeError(f"{field.name}: an option cannot be {hint}")
    return _Option(field.name, kinds[0], len(parts) > 1, field.default, **field.metadata, env_prefix=env_prefix)


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are `StartupError`s of one line."""

    def error(self, message: str) -> typing.NoReturn:
        raise StartupError(message)


def _read_flags(options: Iterable[_Option], argv: Sequence[str], prog: str, description: str | None) -> dict[str, Any]:
    parser = _Parser(prog=prog, description=description, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for known in options:
        if known.kind is bool:
            parser.add_argument(known.flag, action=argparse.BooleanOptionalAction, help=known.description)
        else:
            metavar = "{" + ",".join(known.choices) + "}" if known.choices else known.kind.__name__.upper()
            parser.add_argument(known.flag, metavar=metavar, help=known.description)
    given, unknown = parser.parse_known_args(argv)
    for argument in unknown:
        name = argument.split("=")[0]
        raise StartupError(f"unknown argument {name!r}" + _closest(name, (known.flag for known in options), "--"))
    by_name = {known.name: known for known in options}
    return {
        name: value if by_name[name].kind is bool else by_name[name].parse(value, by_name[name].flag)
        for name, value in vars(given).items()
    }


def _read_environ(options: Iterable[_Option], environ: Mapping[str, str], env_prefix: str) -> dict[str, Any]:
    by_variable = {known.variable: known for known in options}
    values = {}
    for variable in sorted(name for name in environ if name.startswith(f"{env_prefix}_")):
        if variable not in by_variable:
            raise StartupError(
                f"unknown environment variable {variable}" + _closest(variable, by_variable, f"{env_prefix}_")
            )
        values[by_variable[variable].name] = by_variable[variable].parse(environ[variable], variable)
    return values


def _read_file(options: Iterable[_Option], path: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StartupError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except ValueError as error:
        raise StartupError(f"{path} is not a TOML file: {error}") from error
    by_name = {known.name: known for known in options}
    for name in content:
        if name not in by_name:
            raise StartupError(f"{path}: unknown option {name!r}" + _closest(name, by_name))
    return {name: by_name[name].check(value, f"{path}: {name}") for name, value in content.items()}


def _closest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """What may have been meant by `name`. The `prefix` that all have brings none of them nearer."""
    by_rest = {each.removeprefix(prefix): each for each in known}
    matches = difflib.get_close_matches(name.removeprefix(prefix), by_rest, n=1)
    return f"; did you mean {by_rest[matches[0]]!r}?" if matches else "; --help lists every option"
