"""The journal: what was said is there for the next one, whole or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import zlib
from array import array
from pathlib import Path

import pytest

from common.errors import StartupError, Unavailable
from scheduler_svc.core.request import Beginning, FinishReason, Outcome
from scheduler_svc.file_journal import FileJournal, open_journal
from scheduler_svc.journal_file import KEEP_ENDED, KEEP_ENDED_S, Batch, Entry, JournalFile
from scheduler_svc.journal_records import beginning_from_json, outcome_from_json

OUTCOME = Outcome(FinishReason.STOP, 3, 5, 2, 1, 0.25, None, 1.5, stop_token_id=7)
BEGINNING = Beginning(0.25, 0.5, 2)


async def reopened(journal: FileJournal, path: Path) -> list[Entry]:
    await journal.close()
    again = await open_journal(path)
    entries = again.take_entries()
    assert again.take_entries() == []
    await again.close()
    return entries


async def test_requests_tokens_and_outcomes_come_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "journal"
    journal = await open_journal(path)
    assert (journal.take_entries(), journal.last_id) == ([], 0)
    await asyncio.gather(*(journal.accept([number], b"request %d" % number) for number in range(1, 6)))
    for index in range(300):
        journal.append(2, index, (index,))
        if index % 100 == 0:
            await journal.flushed()
    journal.append(3, 0, (9, 8))
    journal.begin(3, BEGINNING)
    journal.end(3, OUTCOME)
    entries = await reopened(journal, path)
    assert [(entry.sequence_id, entry.request) for entry in entries] == [(n, b"request %d" % n) for n in range(1, 6)]
    assert [entry.tokens for entry in entries] == [(), tuple(range(300)), (9, 8), (), ()]
    assert [entry.outcome is None for entry in entries] == [True, True, False, True, True]
    assert outcome_from_json(entries[2].outcome or "") == OUTCOME
    assert beginning_from_json(entries[2].beginning or "") == BEGINNING
    assert [entry.beginning is None for entry in entries] == [True, True, False, True, True]


async def test_tokens_that_are_told_again_are_there_once(tmp_path: Path) -> None:
    journal = await open_journal(tmp_path / "journal")
    await journal.accept([1], b"")
    journal.append(1, 0, range(10))
    await journal.flushed()
    journal.append(1, 6, range(6, 12))
    (entry,) = await reopened(journal, tmp_path / "journal")
    assert entry.tokens == tuple(range(12))


async def test_what_could_not_be_written_is_written_later_and_new_requests_are_refused_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = await open_journal(tmp_path / "journal")
    await journal.accept([1], b"first")
    journal.append(1, 0, range(3))
    commit, sizes = JournalFile.commit, []
    heard: list[bool] = []

    async def hear() -> None:
        heard.append(journal.fails)

    journal.watch(hear)

    def fail(file: JournalFile, batch: Batch) -> None:
        commit(file, batch)  # whether it was written before it failed is not known
        sizes.append(len(batch.accepted))
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(JournalFile, "commit", fail)
        for number in range(2, 50):
            with pytest.raises(Unavailable, match="cannot write its journal"):
                await journal.accept([number], b"refused")
        journal.end(2, OUTCOME)
        journal.append(1, 3, range(3, 5))
        async with asyncio.timeout(20):
            while len(sizes) < 2:
                await asyncio.sleep(0.01)
    assert set(sizes) == {1}, "who is refused at once is not kept"
    assert heard == [True]
    journal.append(1, 5, range(5, 7))
    async with asyncio.timeout(20):
        while not await accepted(journal, 50):
            await asyncio.sleep(0.01)
    assert heard == [True, False]
    entries = await reopened(journal, tmp_path / "journal")
    assert [(entry.sequence_id, entry.outcome is None) for entry in entries] == [(1, True), (2, False), (50, True)]
    assert entries[0].tokens == tuple(range(7))


async def accepted(journal: FileJournal, number: int) -> bool:
    try:
        await journal.accept([number], b"accepted")
    except Unavailable:
        return False
    return True


async def test_only_its_user_may_read_it(tmp_path: Path) -> None:
    journal = await open_journal(tmp_path / "journal")
    await journal.accept([1], b"secret")
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("journal", "journal-wal", "journal-shm", "journal.lock"), 0o600)
    await journal.close()


async def test_committed_before_accept_returns(tmp_path: Path) -> None:
    journal = await open_journal(tmp_path / "journal")
    await journal.accept([1], b"request")
    with sqlite3.connect(tmp_path / "journal") as other:
        assert other.execute("SELECT sequence_id FROM requests").fetchall() == [(1,)]
    other.close()
    await journal.close()


async def test_second_one_waits_until_the_first_has_closed(tmp_path: Path) -> None:
    first = await open_journal(tmp_path / "journal")
    standby = asyncio.create_task(open_journal(tmp_path / "journal"))
    await asyncio.sleep(0.1)
    assert not standby.done()
    await first.accept([4], b"late")
    await first.close()
    second = await standby
    assert second.last_id == 4
    await second.close()


def filled(path: Path) -> None:
    file = JournalFile(path)
    tokens = {1: (0, array("I", range(50)))}
    file.commit(Batch([Entry(number, number, 0.0, b"request" * 100) for number in range(1, 50)], tokens))
    file.close()


VERSION_1 = """
ALTER TABLE requests DROP COLUMN first_id;
ALTER TABLE requests DROP COLUMN beginning;
DROP TABLE policy;
DROP TABLE tokens;
CREATE TABLE tokens (
    sequence_id INTEGER NOT NULL, first_index INTEGER NOT NULL, ids BLOB NOT NULL, ids_crc INTEGER NOT NULL,
    PRIMARY KEY (sequence_id, first_index)
) WITHOUT ROWID;
PRAGMA user_version = 1;
"""


def test_journal_of_version_1_is_read_and_gets_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    filled(path)
    for statement in VERSION_1.split(";"):
        change(statement, path)
    with sqlite3.connect(path) as database:
        for first, ids in ((30, range(30, 60)), (0, range(35))):
            content = array("I", ids).tobytes()
            database.execute("INSERT INTO tokens VALUES (7, ?, ?, ?)", (first, content, zlib.crc32(content)))
    database.close()
    for policy in (None, b"fcfs"):
        file = JournalFile(path)
        entries = file.read()
        assert len(entries) == 49
        assert {entry.sequence_id: entry.tokens for entry in entries if entry.tokens} == {7: tuple(range(60))}
        assert file.read_policy() == policy
        file.commit(Batch(policy=b"fcfs"))
        file.close()


async def test_policy_is_replaced_by_the_next(tmp_path: Path) -> None:
    journal = await open_journal(tmp_path / "journal")
    assert journal.policy is None
    for record in (b"one", b"two"):
        journal.remember_policy(record)
        await journal.flushed()
    await journal.close()
    again = await open_journal(tmp_path / "journal")
    assert again.policy == b"two"
    await again.close()


def test_damaged_policy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    file = JournalFile(path)
    file.commit(Batch(policy=b"fcfs"))
    file.close()
    change("UPDATE policy SET record = 'fair'", path)
    with pytest.raises(StartupError, match="does not have its checksum"):
        JournalFile(path).read_policy()


def test_space_of_what_is_forgotten_can_be_given_back(tmp_path: Path) -> None:
    filled(tmp_path / "journal")
    with sqlite3.connect(tmp_path / "journal") as database:
        assert database.execute("PRAGMA auto_vacuum").fetchone() == (2,), "incremental"
    database.close()


def change(statement: str, path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE requests SET request = zeroblob(700) WHERE sequence_id = 9",
        "UPDATE tokens SET ids = zeroblob(200)",
        "UPDATE tokens SET first_index = 1",
        "UPDATE requests SET request = 'text'",
        "DROP TABLE tokens",
        "PRAGMA user_version = 9",
    ],
)
def test_damaged_content_is_refused(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "journal"
    filled(path)
    change(statement, path)
    with pytest.raises(StartupError, match=r"move the file away .* or start with --journal none$"):
        JournalFile(path).read()


async def test_a_folder_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as refused:
        await open_journal(tmp_path)
    assert str(refused.value) == (
        f"the journal {tmp_path} is a folder: name a file in it, {tmp_path}/journal, with --journal"
    )
    assert not Path(f"{tmp_path}.lock").exists()


@pytest.mark.parametrize("cut", [100, 5000, 20_000])
def test_cut_file_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "journal"
    filled(path)
    content = path.read_bytes()
    assert len(content) > cut
    path.write_bytes(content[:cut])
    with pytest.raises(StartupError, match=r"move the file away .* or start with --journal none$"):
        JournalFile(path).read()


def test_ended_requests_are_forgotten_after_a_while(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "journal")
    numbers = range(1, KEEP_ENDED + 21)
    file.commit(
        Batch(
            [Entry(number, number, 0.0, b"") for number in numbers],
            {number: (0, array("I", [1])) for number in numbers},
            outcomes=[(number, 1000.0 + number / 1e6, "{}") for number in numbers[10:]],
        )
    )
    file.compact(1000.0)
    assert [entry.sequence_id for entry in file.read()] == [*range(1, 11), *range(21, KEEP_ENDED + 21)]
    file.compact(1002.0 + KEEP_ENDED_S)
    assert [entry.sequence_id for entry in file.read()] == list(range(1, 11))
    file.close()


def test_samples_of_a_request_are_forgotten_together(tmp_path: Path) -> None:
    """The first one ended long ago, and can be read again as long as the last one lives."""
    file = JournalFile(tmp_path / "journal")
    file.commit(Batch([Entry(1, 1, 0.0, b"two"), Entry(2, 1, 0.0, b"")], outcomes=[(1, 1000.0, "{}")]))
    file.compact(2000.0 + KEEP_ENDED_S)
    assert [(entry.sequence_id, entry.request) for entry in file.read()] == [(1, b"two"), (2, b"")]
    file.commit(Batch(outcomes=[(2, 2000.0, "{}")]))
    file.compact(1999.0 + KEEP_ENDED_S)
    assert len(file.read()) == 2
    file.compact(2001.0 + KEEP_ENDED_S)
    assert file.read() == []
    file.close()


async def test_samples_are_accepted_as_one(tmp_path: Path) -> None:
    journal = await open_journal(tmp_path / "journal")
    await journal.accept([1], b"one")
    await journal.accept(range(2, 5), b"three")
    entries = await reopened(journal, tmp_path / "journal")
    found = [(entry.sequence_id, entry.first_id, entry.request) for entry in entries]
    assert found == [(1, 1, b"one"), (2, 2, b"three"), (3, 2, b""), (4, 2, b"")]


def test_journal_of_version_2_is_read_and_knows_one_sequence_a_request(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    filled(path)
    for statement in ("ALTER TABLE requests DROP COLUMN first_id", "PRAGMA user_version = 2"):
        change(statement, path)
    for _ in range(2):
        file = JournalFile(path)
        assert [(entry.sequence_id, entry.first_id) for entry in file.read()] == [(n, n) for n in range(1, 50)]
        file.close()
