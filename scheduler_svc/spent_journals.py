"""Journals of servers that have ended and left nothing to do: 'citybus serve' has one for each port it was given."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from fnmatch import fnmatch
from pathlib import Path

from common.errors import StartupError
from scheduler_svc.journal_file import KEEP_ENDED_S, VERSION
from scheduler_svc.journal_lock import SUFFIX, JournalLock
from scheduler_svc.policy_memory import says_something

_NAMES = "scheduler-*.journal"  # those that 'citybus serve' gives


def remove_spent(own: Path) -> None:
    """Remove the spent ones beside the journal `own`, if that has such a name.

    Spent is what nobody holds, was closed in order, and has no request that is live or may still be asked for, nor a
    policy that was set or has learned something.
    """
    if fnmatch(own.name, _NAMES):
        for lock in own.parent.glob(_NAMES + SUFFIX):
            path = lock.with_name(lock.name.removesuffix(SUFFIX))
            if path != own:
                with contextlib.suppress(StartupError, OSError):  # it is not ours to remove, then
                    _remove_if_spent(path)


def _remove_if_spent(path: Path) -> None:
    lock = JournalLock(path)
    try:
        if lock.take() and _is_spent(path):
            for suffix in ("", "-wal", "-shm"):  # an empty log may be left by who has looked into it
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            lock.remove()
    finally:
        lock.release()


def _is_spent(path: Path) -> bool:
    if not path.exists():
        return True
    now, log = time.time(), Path(f"{path}-wal")
    crashed = log.exists() and log.stat().st_size > 0  # its own scheduler has to see what is left of it
    if crashed or now - path.stat().st_mtime < KEEP_ENDED_S:
        return False
    try:
        return _is_empty(path, now)
    except (sqlite3.Error, ValueError, KeyError, TypeError):  # damaged
        return False


def _is_empty(path: Path, now: float) -> bool:
    """Looks without a change, not even to another format: the release that wrote it may be the next to read it."""
    look = f"{path.resolve().as_uri()}?mode=ro&immutable=1"  # its lock is ours, and its log is empty
    with contextlib.closing(sqlite3.connect(look, uri=True)) as database:
        if database.execute("PRAGMA user_version").fetchone() != (VERSION,):
            return False
        (needed,) = database.execute(
            "SELECT count(*) FROM requests WHERE ended IS NULL OR ended >= ?", (now - KEEP_ENDED_S,)
        ).fetchone()
        policy = database.execute("SELECT record FROM policy").fetchone()
        return not needed and (policy is None or not says_something(policy[0]))
