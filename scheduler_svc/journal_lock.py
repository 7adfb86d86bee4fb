"""Who writes a journal: one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from common.errors import StartupError


class JournalLock:
    """Held by the one process that writes the journal at `path`; the system lets it go when that process ends."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(
                f"cannot write the journal {path} ({error.strerror}): choose another file, or none, with --journal"
            ) from error

    def take(self) -> bool:
        """Whether it is ours now. Returns at once."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Let another process have it."""
        os.close(self._descriptor)
