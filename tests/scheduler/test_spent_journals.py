"""Journals of ended servers go once nobody can want anything of them, and no sooner."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler_svc.journal_file import KEEP_ENDED_S, Batch, Entry, JournalFile
from scheduler_svc.journal_lock import JournalLock
from scheduler_svc.spent_journals import remove_spent

PLAIN = {"given": "fcfs", "name": "fcfs", "parameters": {}, "state": {}}
LONG_AGO = KEEP_ENDED_S + 60


def policy(**changes: object) -> bytes:
    return json.dumps(PLAIN | changes).encode()


def journal(folder: Path, batch: Batch, *, port: int = 1, age_s: float = LONG_AGO) -> Path:
    """That of a scheduler on that port, which said this and was closed so long ago."""
    path = folder / f"scheduler-{port}.journal"
    JournalLock(path).release()
    file = JournalFile(path)
    file.commit(batch)
    file.close()
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def request(ended_s_ago: float | None, *, record: bytes = policy()) -> Batch:
    outcomes = [] if ended_s_ago is None else [(1, time.time() - ended_s_ago, "{}")]
    return Batch(accepted=[Entry(1, 1, 0.0, b"asked")], outcomes=outcomes, policy=record)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("batch", [Batch(), request(LONG_AGO), Batch(policy=policy())])
def test_one_with_nothing_in_it_is_removed_with_its_lock(tmp_path: Path, batch: Batch) -> None:
    journal(tmp_path, batch)
    JournalLock(tmp_path / "scheduler-3.journal").release()  # one whose journal was moved away
    (tmp_path / "scheduler-1.journal-wal").touch()  # as who reads a journal may leave it
    remove_spent(tmp_path / "scheduler-2.journal")
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    "make_batch",
    [
        lambda: request(None),
        lambda: request(KEEP_ENDED_S - 60),
        lambda: request(LONG_AGO, record=policy(name="priority")),
        lambda: request(LONG_AGO, record=policy(parameters={"ageing_s": "1"})),
        lambda: request(LONG_AGO, record=policy(state={"alice": 1})),
        lambda: request(LONG_AGO, record=b"{}"),
        lambda: request(LONG_AGO, record=b"[]"),
    ],
)
def test_one_that_a_restart_needs_is_kept(tmp_path: Path, make_batch: Callable[[], Batch]) -> None:
    batch = make_batch()  # its times count from now, not from when the tests were collected
    path = journal(tmp_path, batch)
    remove_spent(tmp_path / "scheduler-2.journal")
    assert path.exists()
    file = JournalFile(path)
    assert file.read_policy() == batch.policy
    file.close()


def test_one_of_another_format_is_left_as_it_is(tmp_path: Path) -> None:
    path = journal(tmp_path, Batch())
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")
    os.utime(path, (time.time() - LONG_AGO,) * 2)
    before = path.read_bytes()
    remove_spent(tmp_path / "scheduler-2.journal")
    assert path.read_bytes() == before


def test_one_that_was_written_lately_is_kept(tmp_path: Path) -> None:
    path = journal(tmp_path, request(LONG_AGO), age_s=60)
    remove_spent(tmp_path / "scheduler-2.journal")
    assert path.exists()


def test_one_that_somebody_holds_is_kept(tmp_path: Path) -> None:
    path = journal(tmp_path, request(LONG_AGO))
    holder = JournalLock(path)
    assert holder.take()
    remove_spent(tmp_path / "scheduler-2.journal")
    assert names(tmp_path) == {path.name, f"{path.name}.lock"}
    holder.release()
    remove_spent(tmp_path / "scheduler-2.journal")
    assert names(tmp_path) == set()


def test_one_that_was_not_closed_is_kept_as_it_is(tmp_path: Path) -> None:
    path = journal(tmp_path, request(LONG_AGO))
    log = path.with_name(f"{path.name}-wal")
    log.write_bytes(b"cut short")
    remove_spent(tmp_path / "scheduler-2.journal")
    assert (path.exists(), log.read_bytes()) == (True, b"cut short")


def test_a_damaged_one_is_kept(tmp_path: Path) -> None:
    path = journal(tmp_path, request(LONG_AGO))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE policy SET record = 'x'")
    database.close()
    os.utime(path, (time.time() - LONG_AGO,) * 2)
    remove_spent(tmp_path / "scheduler-2.journal")
    assert path.exists()


def test_none_is_removed_beside_one_that_is_named_by_hand_nor_ones_own(tmp_path: Path) -> None:
    path = journal(tmp_path, request(LONG_AGO))
    remove_spent(tmp_path / "mine.journal")
    remove_spent(path)
    assert path.exists()


def test_who_waits_for_a_lock_that_is_removed_holds_the_next_one(tmp_path: Path) -> None:
    first, second, third = (JournalLock(tmp_path / "journal") for _ in range(3))
    assert first.take()
    assert not second.take()
    first.remove()
    first.release()
    assert second.take()
    assert not third.take()
    assert not JournalLock(tmp_path / "journal").take()
    second.release()
    assert third.take()
    third.release()
