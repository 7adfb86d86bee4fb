"""Secrets that two processes share: a file with one line. Never a flag or a variable: processes show those."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from common.errors import StartupError

_TOKEN_BYTES = 32


def read_secret(path: Path, what: str) -> str:
    """The secret in the file at `path`; `what` is how the user knows it. Raises `StartupError` where it holds none."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise StartupError(f"{what} cannot be read from {path}: {reason}") from error
    if not secret or not secret.isascii() or not secret.isprintable():
        raise StartupError(f"{path} must hold one line of ASCII, {what}")
    return secret


def read_or_make_secret(path: Path, what: str) -> str:
    """The secret in the file at `path`; made, for this user alone, where there is none. Raises `StartupError`."""
    if not path.exists():
        made = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
            with contextlib.suppress(FileExistsError):  # of two who make one, the first has
                path.hardlink_to(made)  # so that nobody reads the half of it
            made.unlink()
        except OSError as error:
            raise StartupError(f"{what} cannot be written to {path}: {error.strerror}") from error
    return read_secret(path, what)
