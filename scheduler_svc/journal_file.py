"""The file of the journal: SQLite in write-ahead mode (sqlite.org/wal.html), with one writer.

What was committed outlives a process that is killed. A power cut may take the last moments with it, never the order:
`synchronous=NORMAL` writes without waiting for the disk.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import StartupError
from scheduler_svc.wal_tail import WalTail, read_tail

KEEP_ENDED = 1_000
"""Most ended requests that are kept, for readers that come late."""
KEEP_ENDED_S = 300.0
"""How long ended requests are kept, in seconds."""

VERSION = 3
_REQUESTS = """
CREATE TABLE requests (
    sequence_id INTEGER PRIMARY KEY, accepted REAL NOT NULL, request BLOB NOT NULL, request_crc INTEGER NOT NULL,
    ended REAL, outcome TEXT, beginning TEXT, first_id INTEGER NOT NULL
);
CREATE INDEX ended ON requests (ended) WHERE ended IS NOT NULL;
"""
# Tokens are in the order of their writing: a batch of many sequences then changes one page or two, not one for each.
_TOKENS_AND_POLICY = """
CREATE TABLE tokens (
    number INTEGER PRIMARY KEY,
    sequence_id INTEGER NOT NULL, first_index INTEGER NOT NULL, ids BLOB NOT NULL, ids_crc INTEGER NOT NULL
);
CREATE TABLE policy (one INTEGER PRIMARY KEY CHECK (one = 1), record BLOB NOT NULL, record_crc INTEGER NOT NULL);
"""
_FROM_NOTHING = _REQUESTS + _TOKENS_AND_POLICY
_FROM_VERSION_2 = """
ALTER TABLE requests ADD COLUMN first_id INTEGER NOT NULL DEFAULT 0;
UPDATE requests SET first_id = sequence_id;
"""
_FROM_VERSION_1 = f"""
ALTER TABLE requests ADD COLUMN beginning TEXT;
ALTER TABLE tokens RENAME TO older;
{_TOKENS_AND_POLICY}
INSERT INTO tokens SELECT NULL, sequence_id, first_index, ids, ids_crc FROM older ORDER BY sequence_id, first_index;
DROP TABLE older;
{_FROM_VERSION_2}
"""
_MISSING = {0: _FROM_NOTHING, 1: _FROM_VERSION_1, 2: _FROM_VERSION_2}
_ENDED = "SELECT first_id, MAX(ended) AS ended FROM requests GROUP BY first_id HAVING COUNT(*) = COUNT(ended)"
"""Requests all of whose sequences have ended, and when the last one did."""
_REMEDY = "move the file away (its requests are then lost), or start with --journal none"


@dataclass(frozen=True, slots=True)
class Entry:
    """A sequence as the journal knows it. `accepted` is in seconds since 1970; `outcome` None: it is live.

    The sequences that serve one request have consecutive ids, of which `first_id` is the first: its entry has the
    request, the others have none.
    """

    sequence_id: int
    first_id: int
    accepted: float
    request: bytes
    tokens: tuple[int, ...] = ()
    outcome: str | None = None
    beginning: str | None = None


@dataclass(slots=True)
class Batch:
    """What is written together. Tokens are sequence id -> (index of the first, ids); outcomes have their time.

    `policy` replaces what was written before; None leaves it.
    """

    accepted: list[Entry] = field(default_factory=list)
    tokens: dict[int, tuple[int, array[int]]] = field(default_factory=dict)
    beginnings: list[tuple[int, str]] = field(default_factory=list)
    outcomes: list[tuple[int, float, str]] = field(default_factory=list)
    policy: bytes | None = None

    def __bool__(self) -> bool:
        return bool(self.accepted or self.tokens or self.beginnings or self.outcomes or self.policy is not None)

    def add_tokens(self, sequence_id: int, first_index: int, token_ids: Iterable[int]) -> None:
        """Tokens of a sequence, which replace those from `first_index` on."""
        held = self.tokens.get(sequence_id)
        if held is None:
            self.tokens[sequence_id] = (first_index, array("I", token_ids))
            return
        first, ids = held
        del ids[first_index - first :]
        ids.extend(token_ids)

    def add(self, later: Batch) -> None:
        """What has been said since, behind this."""
        self.accepted += later.accepted
        for sequence_id, (first_index, ids) in later.tokens.items():
            self.add_tokens(sequence_id, first_index, ids)
        self.beginnings += later.beginnings
        self.outcomes += later.outcomes
        self.policy = self.policy if later.policy is None else later.policy


class JournalFile:
    """An open journal; its lock is held by the caller. Raises `StartupError` where it is not whole.

    `tail` is what the write-ahead log held beyond its last whole commit: it is left out, and gone from now on. To be
    used from one thread at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # it holds prompts; its log follows
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
            self.tail = self._open()
        except (sqlite3.Error, OSError) as error:
            raise StartupError(f"the journal {path} cannot be read ({error}): {_REMEDY}") from error

    def read(self) -> list[Entry]:
        """Every sequence it knows, in order of arrival. Raises `StartupError` where any of it is damaged."""
        try:
            tokens = self._read_tokens()
            rows = self._database.execute(
                "SELECT sequence_id, first_id, accepted, request, request_crc, outcome, beginning FROM requests"
                " ORDER BY sequence_id"
            )
            return [
                Entry(number, first, accepted, self._whole(request, crc), tuple(tokens.get(number, ())), *ends)
                for number, first, accepted, request, crc, *ends in rows
            ]
        except sqlite3.Error as error:
            raise self._damaged(str(error)) from error

    def read_policy(self) -> bytes | None:
        """What was written of the policy last. Raises `StartupError` where it is damaged."""
        try:
            row = self._database.execute("SELECT record, record_crc FROM policy").fetchone()
        except sqlite3.Error as error:
            raise self._damaged(str(error)) from error
        return None if row is None else self._whole(*row)

    def commit(self, batch: Batch) -> None:
        """Write a batch, all of it or nothing; it may be written twice. Raises sqlite3.Error."""
        with self._transaction() as database:
            database.executemany(
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, NULL, NULL, NULL, ?)",
                [(e.sequence_id, e.accepted, e.request, zlib.crc32(e.request), e.first_id) for e in batch.accepted],
            )
            database.executemany(
                "INSERT INTO tokens VALUES (NULL, ?, ?, ?, ?)",
                [
                    (number, first, content := ids.tobytes(), zlib.crc32(content))
                    for number, (first, ids) in batch.tokens.items()
                ],
            )
            database.executemany(
                "UPDATE requests SET beginning = ? WHERE sequence_id = ?",
                [(beginning, number) for number, beginning in batch.beginnings],
            )
            database.executemany(
                "UPDATE requests SET ended = ?, outcome = ? WHERE sequence_id = ?",
                [(ended, outcome, number) for number, ended, outcome in batch.outcomes],
            )
            if batch.policy is not None:
                database.execute(
                    "INSERT OR REPLACE INTO policy VALUES (1, ?, ?)", (batch.policy, zlib.crc32(batch.policy))
                )

    def compact(self, now: float) -> None:
        """Forget what ended long ago, and what is more than is kept. Raises sqlite3.Error."""
        with self._transaction() as database:
            database.execute(
                f"DELETE FROM requests WHERE first_id IN (SELECT first_id FROM ({_ENDED}) WHERE ended < ?)"
                f" OR first_id IN (SELECT first_id FROM ({_ENDED}) ORDER BY ended DESC LIMIT -1 OFFSET ?)",
                (now - KEEP_ENDED_S, KEEP_ENDED),
            )
            database.execute("DELETE FROM tokens WHERE sequence_id NOT IN (SELECT sequence_id FROM requests)")
        self._database.execute("PRAGMA incremental_vacuum").fetchall()

    def close(self) -> None:
        """Nothing more is written; the write-ahead log is merged into the file."""
        self._database.close()

    def _open(self) -> WalTail:
        run = self._database.execute
        (num_pages,) = run("PRAGMA page_count").fetchone()
        if num_pages == 0:  # it writes, and nothing may be written before the tail is read
            run("PRAGMA auto_vacuum = INCREMENTAL")
        run("PRAGMA journal_mode = WAL").fetchall()
        run("PRAGMA synchronous = NORMAL")
        _, num_read, _ = run("PRAGMA wal_checkpoint").fetchone()
        tail = read_tail(Path(f"{self._path.resolve()}-wal"), num_read)
        (version,) = run("PRAGMA user_version").fetchone()
        if version < VERSION:
            self._database.executescript(f"BEGIN; {_MISSING[version]} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version > VERSION:
            raise StartupError(f"the journal {self._path} has format {version}, and this is {VERSION}: {_REMEDY}")
        (verdict,) = run("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise self._damaged(str(verdict))
        if tail:  # else a later opening would find it again, behind what is written from now on
            run("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return tail

    def _read_tokens(self) -> dict[int, array[int]]:
        found: dict[int, array[int]] = {}
        for number, first, ids, crc in self._database.execute(
            "SELECT sequence_id, first_index, ids, ids_crc FROM tokens ORDER BY number"
        ):
            known = found.setdefault(number, array("I"))
            if first > len(known):
                raise self._damaged(f"tokens of request {number} are missing")
            del known[first:]
            known.frombytes(self._whole(ids, crc))
        return found

    def _whole(self, content: bytes, crc: int) -> bytes:
        if not isinstance(content, bytes) or zlib.crc32(content) != crc:
            raise self._damaged("a record does not have its checksum")
        return content

    def _damaged(self, how: str) -> StartupError:
        return StartupError(f"the journal {self._path} is damaged ({how}): {_REMEDY}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
        except BaseException:
            if self._database.in_transaction:  # a full disk ends it by itself
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
