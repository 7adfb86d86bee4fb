"""Putting a model into the models directory: whole, or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from citybus.failure import Failure
from citybus.models.folder import check_folder
from citybus.models.store import MANIFEST, FileFacts, Manifest, ModelStore, resolve_name

INCOMING = ".incoming-"
"""How the names of half-made folders begin; none of them outlives the next installation."""

MARGIN_BYTES = 32 << 20
"""Free space that must be left on the disk."""

Report = Callable[[str], None]
"""Says what is being done now."""


def add_folder(store: ModelStore, folder: Path, name: str | None, report: Report) -> Path:
    """Copy the model in `folder` into the store, as `name` or under the folder's own name; returns where it is now.

    Raises `Failure`.
    """
    folder = folder.expanduser().resolve()
    files = [file for file in check_folder(folder) if file != MANIFEST]  # that of a models directory it came from
    name = resolve_name(name or folder.name)

    def fill(made: Path, _scratch: Path) -> None:
        for file in files:
            report(f"copying {file}")
            shutil.copyfile(folder / file, made / file)

    with installing(store, report):
        if store.get(name) is not None:
            raise Failure(f"there is a model {name!r} in {store.root} already: choose another name with --name")
        return install(store, name, str(folder), sum((folder / file).stat().st_size for file in files), fill, report)


@contextmanager
def installing(store: ModelStore, report: Report) -> Iterator[None]:
    """Holds the store's lock, with what killed installations left behind removed. Errors of the disk become `Failure`.

    The lock goes with the process, however it ends.
    """
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        with (store.root / ".lock").open("w") as lock:
            _lock(lock.fileno(), report)
            for left in store.root.glob(f"{INCOMING}*"):
                shutil.rmtree(left)
            yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(store.root) from error
        raise Failure(f"cannot write to {store.root}: {error.strerror}; choose another with --models-dir") from error


def install(
    store: ModelStore, name: str, source: str, need_bytes: int, fill: Callable[[Path, Path], None], report: Report
) -> Path:
    """Have `fill(folder, scratch)` make the model, then put it in place in one step; returns its folder.

    To be called inside `installing`. `need_bytes` is what `fill` writes at most; `scratch` is a folder for what is not
    part of the model. A process killed at any moment leaves nothing under the model's name.
    """
    free = shutil.disk_usage(store.root).free
    if free < need_bytes + MARGIN_BYTES:
        raise disk_full(store.root, need_bytes + MARGIN_BYTES)
    incoming = store.root / f"{INCOMING}{name}"
    made, scratch = incoming / "model", incoming / "scratch"
    try:
        made.mkdir(parents=True)
        scratch.mkdir()
        fill(made, scratch)
        report("computing checksums")
        files = {path.name: FileFacts(path.stat().st_size, sha256_of(path)) for path in sorted(made.iterdir())}
        (made / MANIFEST).write_text(Manifest(source, files).to_json(), encoding="utf-8")
        _settle(made)
        made.rename(store.root / name)
        _sync(store.root)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return store.root / name


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def disk_full(folder: Path, need_bytes: int | None = None) -> Failure:
    """The failure for a disk on which `folder` cannot grow (by `need_bytes`, where that is known)."""
    free = shutil.disk_usage(folder).free
    need = f", {need_bytes / 1e6:.0f} MB are needed" if need_bytes else ""
    return Failure(
        f"the disk of {folder} is full ({free / 1e6:.0f} MB are free{need}): make room, or choose another folder with "
        "--models-dir"
    )


def _lock(descriptor: int, report: Report) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report("waiting for another 'citybus model add' to end")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _settle(folder: Path) -> None:
    """Everything in `folder` on the disk, and readable for a service that runs as another user."""
    for path in (*folder.iterdir(), folder):
        path.chmod(0o755 if path.is_dir() else 0o644)
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
