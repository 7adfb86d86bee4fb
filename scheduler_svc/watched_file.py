"""A file of the operator's that takes effect when it is written, without a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from common.errors import StartupError

T = TypeVar("T")

log = structlog.get_logger()


class WatchedFile(Generic[T]):
    """What `parse` makes of the text of a file, made anew whenever that has changed.

    `parse` raises `ValueError` for a text that is no good, of which it quotes nothing. That is a `StartupError` at
    first, and later on is logged, while what was read before goes on.
    """

    def __init__(self, path: Path, parse: Callable[[str], T]) -> None:
        self._path = path
        self._parse = parse
        self._seen = self._look()
        try:
            self._value = self._read()
        except (OSError, ValueError) as error:
            raise StartupError(f"{path} cannot be used: {_reason(error)}") from error

    def value(self) -> T:
        """What it says now. Costs a look at its inode, unless it has changed."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            try:
                self._value = self._read()
                log.info("changed file is read again", path=self._path)
            except (OSError, ValueError) as error:
                log.error("changed file cannot be used: it counts as before", path=self._path, reason=_reason(error))
        return self._value

    def _look(self) -> tuple[int, ...]:
        """Differs as soon as it is another file, or has been written to; empty where there is none."""
        try:
            found = self._path.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> T:
        return self._parse(self._path.read_text(encoding="utf-8"))


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)
