"""Policies from Python files in a folder that the operator owns."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

from scheduler_svc import policy_parameters
from scheduler_svc.core.policy import Policy

MAX_FILE_BYTES = 2**20

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class BadPolicyFile(ValueError):
    """A file is no policy; the message says why."""


class _FromSource(SourceFileLoader):
    """Without Python's cache of compiled files, to which an edit within a second that keeps the size is none."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def policy_files(folder: Path) -> list[Path]:
    """The files of a folder, by name; those that begin with an underscore are left out."""
    root = folder.resolve()
    found = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    return [path for path in found if path.is_file() and path.resolve().is_relative_to(root)]


def is_too_large(path: Path) -> bool:
    """Whether a file has more bytes than a policy may. Raises OSError."""
    return path.stat().st_size > MAX_FILE_BYTES


def load(path: Path) -> list[type[Policy]]:
    """The policies that a file defines. Runs the file, so it must be trusted.

    Raises `BadPolicyFile` where it does not run, defines none, or one that does not keep to the rules.
    """
    module_name = f"citybus_policy_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path, loader=_FromSource(module_name, str(path)))
    if spec is None or spec.loader is None:
        raise BadPolicyFile("it cannot be imported")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(module_name)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        if is_too_large(path):
            raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
        spec.loader.exec_module(module)
        found = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Policy) and value.__module__ == module_name
        ]
        for policy in found:
            check(policy)
    except BaseException as error:  # whatever it does, it must not end the service
        _restore(module_name, before)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise BadPolicyFile(str(error) if isinstance(error, ValueError) else _describe(error)) from error
    if not found:
        _restore(module_name, before)
        raise BadPolicyFile("it defines no class that extends scheduler_svc.core.policy.Policy")
    return found


def check(policy: type[Policy]) -> None:
    """Raises ValueError unless a policy class has a name, and parameters that can be written."""
    if not isinstance(policy.name, str) or not _NAME.fullmatch(policy.name) or "name" not in vars(policy):
        raise ValueError(f"class {policy.__name__} needs a name of its own: small letters, digits and underscores")
    try:
        policy_parameters.check(policy.Parameters)
        policy()
    except ValueError as error:
        raise ValueError(f"policy {policy.name}: {error}") from error


def _restore(module_name: str, before: object) -> None:
    if before is None:
        del sys.modules[module_name]
    else:
        sys.modules[module_name] = before  # type: ignore[assignment]


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
