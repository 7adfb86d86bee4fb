"""The arrows between our packages and the rules for shipped code, read from the source itself.

Every import counts: at the top of a module, within a function, under TYPE_CHECKING, and `importlib.import_module` of
a literal name. `check` is a pure function of a path and its source, so that the tests below can show that it sees
what it should.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("citybus", "common", "executor_svc", "kernels", "scheduler_svc")
MAX_FILE_LINES = 250
MAX_FUNCTION_LINES = 60

# What of ours each package may import; generated stubs are counted apart.
ARROWS = {
    "kernels": ("kernels",),
    "common": ("common",),
    "scheduler_svc": ("scheduler_svc", "common"),
    "executor_svc": ("executor_svc", "common", "kernels"),
    "citybus": ("citybus",),
}
# Pure packages: a narrower choice of ours, nothing third-party, and no clock, chance, I/O or concurrency.
PURE = {
    "scheduler_svc/core": ("scheduler_svc.core", "common.step", "common.resident", "common.logprobs", "common.grammar"),
    "scheduler_svc/policies": ("scheduler_svc.policies", "scheduler_svc.core", "common.step"),
}
IMPURE = "asyncio concurrent datetime logging multiprocessing os random secrets socket subprocess threading time uuid"
THIRD_PARTY = {
    "kernels/*": "torch",
    "kernels/allow_tokens.py": "numpy torch",
    "kernels/triton/*": "torch triton",
    "common/*": "google grpc grpc_health grpc_reflection prometheus_client structlog",
    "common/matching.py": "llguidance",
    "scheduler_svc/*": "google grpc jinja2 prometheus_client structlog tokenizers",
    "scheduler_svc/form_worker.py": "llguidance",
    "executor_svc/*": "grpc numpy prometheus_client safetensors structlog torch",
    "executor_svc/constraints.py": "llguidance numpy",
    "citybus/*": "google grpc rich",
    "citybus/models/convert.py": "torch transformers",
    "citybus/bench/plot.py": "matplotlib",
}
STUB_IMPORTERS = (
    "common/wire.py",
    "common/wire_grammar.py",
    "common/wire_sampling.py",
    "common/grpc_server.py",
    "scheduler_svc/__main__.py",
    "scheduler_svc/acceptance.py",
    "scheduler_svc/admin.py",
    "scheduler_svc/answer_params.py",
    "scheduler_svc/admin_messages.py",
    "scheduler_svc/executor_client.py",
    "scheduler_svc/forms.py",
    "scheduler_svc/frontend.py",
    "scheduler_svc/responses.py",
    "scheduler_svc/sampling_limits.py",
    "scheduler_svc/validation.py",
    "executor_svc/__main__.py",
    "executor_svc/server.py",
    "citybus/async_client.py",
    "citybus/async_stream.py",
    "citybus/bench/policies.py",
    "citybus/bench/server.py",
    "citybus/client.py",
    "citybus/forms.py",
    "citybus/messages.py",
    "citybus/reconnect.py",
    "citybus/reading.py",
    "citybus/requests.py",
    "citybus/stream.py",
    "citybus/cli/status.py",
    "citybus/cli/admin.py",
    "citybus/cli/drain.py",
    "citybus/cli/events.py",
    "citybus/cli/policy.py",
)
# What turns data into code.
UNSAFE_MODULES = ("cloudpickle", "dill", "marshal", "pickle", "shelve", "_pickle")
UNSAFE_CALLS = ("__import__", "compile", "eval", "exec")
UNSAFE_ATTRIBUTES = ("torch.load", "yaml.load", "numpy.load", "np.load")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.}*~])/(home|root|work|Users)/[\w.]")


def check(path: str, source: str) -> list[str]:
    """What is wrong with the file at `path` (relative to the root, with slashes), one line each."""
    tree = ast.parse(source)
    return [f"{path}: {fault}" for rule in (_imports, _unsafe, _sizes, _words) for fault in rule(path, source, tree)]


def imported(path: str, tree: ast.Module) -> Iterator[str]:
    """Full dotted names; for `from a import b` it is a.b, whether b is a module or not."""
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parts = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*parts, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] == "import_module":
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def dotted(node: ast.AST) -> str:
    """The name `a.b.c` an expression spells, or "" where it spells none."""
    if isinstance(node, ast.Attribute) and dotted(node.value):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in allowed)


def _imports(path: str, source: str, tree: ast.Module) -> Iterator[str]:
    package = path.split("/")[0]
    pure = next((folder for folder in PURE if path.startswith(folder + "/")), None)
    third_party = {name for glob, names in THIRD_PARTY.items() if fnmatch(path, glob) for name in names.split()}
    for name in imported(path, tree):
        top = name.split(".")[0]
        stub = re.search(r"_pb2(_grpc)?\b", name) is not None
        if stub and path not in STUB_IMPORTERS:
            yield f"imports generated stubs: {name}"
        elif not stub and top in SHIPPED and not _within(name, PURE[pure] if pure else ARROWS[package]):
            yield f"must not import {name}"
        elif top in sys.stdlib_module_names or top in SHIPPED:
            if pure and top in IMPURE.split():
                yield f"is pure and must not import {name}"
        elif pure or top not in third_party:
            yield f"must not import {name}"


def _unsafe(path: str, source: str, tree: ast.Module) -> Iterator[str]:
    for name in imported(path, tree):
        if name.split(".")[0] in UNSAFE_MODULES or name in UNSAFE_ATTRIBUTES:
            yield f"unsafe: import of {name}"
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            name = dotted(node).removeprefix("builtins.")
            if name in UNSAFE_CALLS or name in UNSAFE_ATTRIBUTES:
                yield f"unsafe: {name} on line {node.lineno}"


def _sizes(path: str, source: str, tree: ast.Module) -> Iterator[str]:
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"has {lines} lines, more than {MAX_FILE_LINES}"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno:
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield f"{node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"


def _words(path: str, source: str, tree: ast.Module) -> Iterator[str]:
    if path.endswith("/utils.py"):
        yield "is named for no purpose"
    if found := UNFINISHED.search(source):
        yield f"is unfinished: {found.group()}"


def shipped() -> list[str]:
    """The paths of our own files, generated ones left out."""
    paths = (path.relative_to(ROOT).as_posix() for package in SHIPPED for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in paths if not re.search(r"_pb2(_grpc)?\.py$", path))


@pytest.mark.parametrize("path", shipped())
def test_shipped_code_keeps_the_rules(path: str) -> None:
    assert check(path, (ROOT / path).read_text(encoding="utf-8")) == []


def test_the_walk_sees_every_package() -> None:
    assert {path.split("/")[0] for path in shipped()} == set(SHIPPED)
    assert set(STUB_IMPORTERS) <= set(shipped())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git knows which files are ours")
def test_no_file_names_a_path_of_a_developers_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for path in listed.stdout.splitlines():
        if path.endswith("Dockerfile"):  # its paths are those within an image
            continue
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
        found += [f"{path}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


def test_the_distribution_that_shadows_our_kernels_is_not_installed() -> None:
    """Hugging Face's `kernels` has the import name of ours."""
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution("kernels")


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("kernels/a.py", "import common.step", "must not import common.step"),
        ("kernels/a.py", "def f():\n    from executor_svc import engine", "must not import executor_svc.engine"),
        ("kernels/a.py", "import transformers", "must not import transformers"),
        ("kernels/a.py", "def f():\n    import triton.language", "must not import triton.language"),
        ("common/a.py", "from scheduler_svc.core import request", "must not import scheduler_svc.core.request"),
        ("common/a.py", "import citybus", "must not import citybus"),
        ("common/a.py", "from citybus.v1 import generation_pb2", "imports generated stubs: citybus.v1.generation_pb2"),
        ("common/a.py", "import grpc_health.v1.health_pb2", "imports generated stubs: grpc_health.v1.health_pb2"),
        ("scheduler_svc/a.py", "import torch.nn as nn", "must not import torch.nn"),
        ("scheduler_svc/a.py", "if TYPE_CHECKING:\n    import kernels", "must not import kernels"),
        ("scheduler_svc/a.py", "from executor_svc.engine import Engine", "must not import executor_svc.engine.Engine"),
        ("scheduler_svc/a.py", "importlib.import_module('torch')", "must not import torch"),
        ("scheduler_svc/a.py", "import_module('kernels')", "must not import kernels"),
        ("scheduler_svc/a.py", "from citybus.client import Client", "must not import citybus.client.Client"),
        ("executor_svc/a.py", "from scheduler_svc import core", "must not import scheduler_svc.core"),
        ("executor_svc/models/a.py", "import tokenizers", "must not import tokenizers"),
        ("scheduler_svc/core/a.py", "from time import monotonic", "is pure and must not import time.monotonic"),
        ("scheduler_svc/core/a.py", "import asyncio", "is pure and must not import asyncio"),
        ("scheduler_svc/core/a.py", "import grpc", "must not import grpc"),
        ("scheduler_svc/core/a.py", "import structlog", "must not import structlog"),
        ("scheduler_svc/core/a.py", "from common import errors", "must not import common.errors"),
        ("scheduler_svc/core/a.py", "from common import step, wire", "must not import common.wire"),
        ("scheduler_svc/core/a.py", "from .. import loop", "must not import scheduler_svc.loop"),
        ("scheduler_svc/core/a.py", "from ..policies.fcfs import F", "must not import scheduler_svc.policies.fcfs.F"),
        ("scheduler_svc/policies/a.py", "import random", "is pure and must not import random"),
        ("scheduler_svc/policies/a.py", "import scheduler_svc.loop", "must not import scheduler_svc.loop"),
        ("citybus/a.py", "from common.errors import X", "must not import common.errors.X"),
        ("citybus/a.py", "import scheduler_svc", "must not import scheduler_svc"),
        ("citybus/cli/a.py", "import torch", "must not import torch"),
        ("common/a.py", "import pickle", "unsafe: import of pickle"),
        ("common/a.py", "from marshal import loads", "unsafe: import of marshal.loads"),
        ("common/a.py", "eval('1')", "unsafe: eval on line 1"),
        ("common/a.py", "import x\nrun = exec", "unsafe: exec on line 2"),
        ("common/a.py", "builtins.eval('1')", "unsafe: eval on line 1"),
        ("common/a.py", "__import__('os')", "unsafe: __import__ on line 1"),
        ("executor_svc/a.py", "torch.load(path, weights_only=True)", "unsafe: torch.load on line 1"),
        ("executor_svc/a.py", "from torch import load", "unsafe: import of torch.load"),
        ("executor_svc/a.py", "yaml.load(text)", "unsafe: yaml.load on line 1"),
        ("common/utils.py", "", "is named for no purpose"),
        ("common/a.py", "x = 1  # " + "TO" + "DO later", "is unfinished: " + "TO" + "DO"),
        ("common/a.py", "\n" * 251, "has 251 lines, more than 250"),
        ("common/a.py", "def f():\n" + "    x = 1\n" * 60, "f has 61 lines, more than 60"),
    ],
)
def test_the_check_sees_a_violation(path: str, source: str, fault: str) -> None:
    assert f"{path}: {fault}" in check(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/a.py", "import math\nimport torch\nfrom kernels.philox import bits\nfrom . import linear"),
        (
            "kernels/triton/a.py",
            "import torch\nimport triton.language as tl\nfrom kernels.paged_attention import PagedBatch",
        ),
        ("common/wire.py", "from citybus.v1 import generation_pb2 as pb"),
        ("common/grpc_server.py", "from grpc_health.v1 import health, health_pb2_grpc\nimport asyncio, time"),
        ("scheduler_svc/core/a.py", "import heapq\nfrom common.step import StepPlan\nfrom . import sequence"),
        ("scheduler_svc/policies/a.py", "from scheduler_svc.core.policy import Policy\nfrom .fcfs import Fcfs"),
        ("executor_svc/a.py", "import kernels.linear\nfrom common import log\nmodel.eval()\nre.compile('a')"),
        ("citybus/cli/status.py", "from citybus.admin.v1 import admin_pb2\nimport rich.live"),
        ("citybus/bench/plot.py", "importlib.import_module('matplotlib.figure')"),
        ("citybus/models/convert.py", "import torch\nfrom transformers import AutoTokenizer"),
        ("common/a.py", "x = 'never eval or pickle'  # nor torch.load\n" * 250),
        ("common/a.py", "def f():\n" + "    x = 1\n" * 59),
    ],
)
def test_the_check_passes_what_is_allowed(path: str, source: str) -> None:
    assert check(path, source) == []


@pytest.mark.parametrize("text", ["see /ho" + "me/ann/x", "cd /wo" + "rk/main", '"/ro' + 'ot/.cache"'])
def test_the_pattern_of_machine_paths_sees_one(text: str) -> None:
    assert MACHINE_PATH.search(text)
    assert not MACHINE_PATH.search("at /models/home/x, https://host/home/x, $HOME/home/x, ~/home/y")
