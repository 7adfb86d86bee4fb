"""The token by which an executor knows its scheduler, for as long as both are children of this process."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from citybus.failure import Failure

_TOKEN_BYTES = 32


@contextmanager
def shared_token(path: Path) -> Iterator[None]:
    """A new token is in the file at `path` inside the `with` block, for this user alone. Raises `Failure`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # of a process that was killed
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
    except OSError as error:
        raise Failure(
            f"the executor's token cannot be written to {path} ({error.strerror}): make room there, or name another"
            " state directory with XDG_STATE_HOME"
        ) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
