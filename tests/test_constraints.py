"""`deploy/constraints.txt` pins everything an installation of `citybus[dev]` brings, at the versions tested here."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

CONSTRAINTS = Path(__file__).resolve().parent.parent / "deploy" / "constraints.txt"
CUDA = ("cuda-", "nvidia-")  # a build of torch for GPUs pins these itself


def pins() -> dict[str, str]:
    lines = [line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    matches = [re.fullmatch(r"([a-z0-9-]+)==([0-9][0-9a-z.]*)", line) for line in lines]
    assert None not in matches, "a line is not name==version, or names a local version"
    names = [match[1] for match in matches if match]
    assert names == sorted(set(names))
    return {match[1]: match[2] for match in matches if match}


def installed(name: str, extras: frozenset[str], seen: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """(distribution, extra) -> installed version, for `name` and all it needs here."""
    distribution = importlib.metadata.distribution(name)
    for extra in ("", *extras):
        if (name, extra) in seen:
            continue
        seen[name, extra] = Version(distribution.version).public
        for line in distribution.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                installed(canonicalize_name(needed.name), frozenset(needed.extras), seen)
    return seen


def test_everything_installed_is_pinned_at_its_version() -> None:
    needed = {name: version for (name, _), version in installed("citybus", frozenset({"dev"}), {}).items()}
    del needed["citybus"]
    needed = {name: version for name, version in needed.items() if not name.startswith(CUDA)}
    pinned = pins()
    assert {"torch", "grpcio", "pytest", "transformers", "buf-bin", "markupsafe"} <= set(needed)
    assert {name: pinned.get(name) for name in needed} == needed
