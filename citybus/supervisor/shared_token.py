"""The token by which an executor knows its scheduler, for as long as both are children of this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from citybus.failure import Failure

_TOKEN_BYTES = 32
_NAMES = "executor-*.token"


@contextmanager
def shared_token(path: Path) -> Iterator[None]:
    """A new token is in the file at `path` inside the `with` block, for this user alone. Raises `Failure`.

    Those beside it whose process was killed go.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.glob(_NAMES):
            _remove_if_left(other)
        file = _made(path)
    except OSError as error:
        raise Failure(
            f"the executor's token cannot be written to {path} ({error.strerror}): make room there, or name another"
            " state directory with XDG_STATE_HOME"
        ) from error
    with file:
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _made(path: Path) -> TextIO:
    """The file with a new token. It is there once it is whole and locked: by its lock others know that it is in use."""
    made = path.with_name(f"{path.name}.{os.getpid()}")
    file = os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        file.flush()
        made.replace(path)
    except OSError:
        file.close()
        made.unlink(missing_ok=True)
        raise
    return file


def _remove_if_left(path: Path) -> None:
    with contextlib.suppress(OSError), path.open() as file:  # BlockingIOError: it is in use
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # else somebody has just put a new one there
            path.unlink()
