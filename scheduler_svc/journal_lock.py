"""Who writes a journal: one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from common.errors import StartupError

SUFFIX = ".lock"
"""Of the lock's file, behind the journal's name."""


class JournalLock:
    """Held by the one process that writes the journal at `path`; the system lets it go when that process ends."""

    def __init__(self, path: Path) -> None:
        self._path = Path(f"{path}{SUFFIX}")
        self._journal = path
        self._descriptor = self._open()

    def take(self) -> bool:
        """Whether it is ours now. Returns at once."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if not self._is_in_place():  # who held it has removed it: the next one opens another file
            removed, self._descriptor = self._descriptor, self._open()
            os.close(removed)
            return self.take()
        return True

    def release(self) -> None:
        """Let another process have it."""
        os.close(self._descriptor)

    def remove(self) -> None:
        """Leave no file of a lock that is ours, before it is released: whoever waits for it makes another."""
        self._path.unlink()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(
                f"cannot write the journal {self._journal} ({error.strerror}): choose another file, or none, with"
                " --journal"
            ) from error

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return False
