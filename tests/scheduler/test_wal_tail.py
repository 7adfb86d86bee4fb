"""The end of the write-ahead log: cut at every kind of place, damaged in the middle, overwritten in part."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from scheduler_svc.file_journal import open_journal
from scheduler_svc.journal_file import Batch, Entry, JournalFile
from scheduler_svc.wal_tail import WalTail, read_tail

HEADER = 32
FRAME = 24
PAGE = 4096
SIZE = FRAME + PAGE


def crashed(path: Path, commits: int, checkpoint_after: int = 0) -> bytearray:
    """A journal as a killed process leaves it after so many commits of one request each; its log is returned.

    With `checkpoint_after`, what the commits up to that one left in the log is then overwritten.
    """
    live = path.with_name("live")
    file = JournalFile(live)
    for number in range(1, commits + 1):
        file.commit(Batch([Entry(number, number, 0.0, b"request %d" % number)]))
        if number == checkpoint_after:
            file._database.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    shutil.copy(live, path)
    content = bytearray(Path(f"{live}-wal").read_bytes())
    file.close()
    return content


def write(path: Path, wal: bytes) -> None:
    Path(f"{path}-wal").write_bytes(wal)


def opened(path: Path) -> tuple[WalTail, list[int]]:
    """What an opening leaves out, and the requests that it finds; the next opening finds the same, and no tail."""
    file = JournalFile(path)
    tail, found = file.tail, [entry.sequence_id for entry in file.read()]
    file.commit(Batch([Entry(99, 99, 0.0, b"")]))
    shutil.copy(path, path.with_name("again"))
    shutil.copy(f"{path}-wal", path.with_name("again-wal"))
    file.close()
    again = JournalFile(path.with_name("again"))
    assert (again.tail, [entry.sequence_id for entry in again.read()]) == (WalTail(), [*found, 99])
    again.close()
    return tail, found


def markers(wal: bytes) -> list[int]:
    """Numbers of the frames that end a commit."""
    starts = range(HEADER, len(wal), SIZE)
    return [number for number, start in enumerate(starts) if int.from_bytes(wal[start + 4 : start + 8], "big")]


def test_clean_log_has_no_tail(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    wal = crashed(path, 5)
    assert len(markers(wal)) == 6, "the schema, and five requests"
    assert (len(wal) - HEADER) % SIZE == 0
    write(path, wal)
    assert opened(path) == (WalTail(), [1, 2, 3, 4, 5])


def test_log_of_a_journal_behind_a_link_is_found(tmp_path: Path) -> None:
    path, link = tmp_path / "journal", tmp_path / "link"
    write(path, crashed(path, 3)[:-1])
    link.symlink_to(path)
    file = JournalFile(link)
    assert (bool(file.tail), len(file.read())) == (True, 2)
    file.close()


@pytest.mark.parametrize("wal", [None, b""])
def test_no_log_has_no_tail(tmp_path: Path, wal: bytes | None) -> None:
    path = tmp_path / "wal"
    if wal is not None:
        path.write_bytes(wal)
    assert read_tail(path, 0) == WalTail()


@pytest.mark.parametrize("left", [1, FRAME - 1, FRAME, FRAME + 1, SIZE - 1])
def test_last_commit_cut_within_its_last_frame_was_never_made(tmp_path: Path, left: int) -> None:
    path = tmp_path / "journal"
    wal = crashed(path, 3)
    before, last = markers(wal)[-2:]
    write(path, wal[: HEADER + last * SIZE + left])
    assert opened(path) == (WalTail(frames=last - before), [1, 2])


def test_commit_without_its_last_frame_was_never_made(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    wal = crashed(path, 3)
    first = markers(wal)[0]
    assert first >= 2, "the schema takes several pages"
    write(path, wal[: HEADER + first * SIZE])
    assert opened(path) == (WalTail(frames=first), [])


@pytest.mark.parametrize("commits", [0, 1, 2, 3])
def test_log_cut_after_a_commit_or_its_header_is_clean(tmp_path: Path, commits: int) -> None:
    path = tmp_path / "journal"
    wal = crashed(path, 3)
    ends = [0, *(number + 1 for number in markers(wal)[1:])]
    write(path, wal[: HEADER + ends[commits] * SIZE])
    assert opened(path) == (WalTail(), list(range(1, commits + 1)))


def flip(byte: int) -> Callable[[bytearray, int], None]:
    def change(wal: bytearray, frame: int) -> None:
        wal[HEADER + frame * SIZE + byte] ^= 1

    return change


@pytest.mark.parametrize("byte", [3, 7, 11, 15, 19, 23, FRAME, FRAME + PAGE // 2, SIZE - 1])
def test_commits_beyond_a_damaged_frame_are_lost_and_counted(tmp_path: Path, byte: int) -> None:
    """The byte is in each field of a frame in turn: page, size, salts, checksums, content."""
    path = tmp_path / "journal"
    wal = crashed(path, 5)
    frame = markers(wal)[2]
    flip(byte)(wal, frame)
    write(path, wal)
    number_of_frames = (len(wal) - HEADER) // SIZE
    tail, found = opened(path)
    assert found == [1]
    assert tail == WalTail(frames=number_of_frames - markers(wal)[1] - 1, lost_commits=4)


def test_damaged_last_frame_is_as_a_write_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    wal = crashed(path, 3)
    flip(FRAME)(wal, markers(wal)[-1])
    write(path, wal)
    tail, found = opened(path)
    assert (tail.lost_commits, tail.frames > 0, found) == (0, True, [1, 2])


def test_frames_of_an_older_generation_are_no_tail(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    wal = crashed(path, 8, checkpoint_after=7)
    salts = {bytes(wal[start + 8 : start + 16]) for start in range(HEADER, len(wal), SIZE)}
    assert len(salts) == 2
    write(path, wal)
    assert opened(path) == (WalTail(), [1, 2, 3, 4, 5, 6, 7, 8])


def test_write_cut_short_over_an_older_generation_is_a_tail(tmp_path: Path) -> None:
    """The header of the last frame is new already, and its page still the older one."""
    path = tmp_path / "journal"
    wal = crashed(path, 8, checkpoint_after=7)
    ours = [start for start in range(HEADER, len(wal), SIZE) if wal[start + 8 : start + 16] == wal[16:24]]
    wal[ours[-1] + FRAME : ours[-1] + SIZE] = bytes(PAGE)
    write(path, wal)
    assert opened(path) == (WalTail(frames=len(ours)), [1, 2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("byte", [0, 3, 7, 11, 15, 19, 23, 27, 31])
def test_log_with_a_damaged_header_is_not_read(tmp_path: Path, byte: int) -> None:
    path = tmp_path / "journal"
    wal = crashed(path, 3)
    wal[byte] ^= 4
    write(path, wal)
    assert opened(path) == (WalTail(header_is_damaged=True), [])


def test_big_endian_checksums(tmp_path: Path) -> None:
    """A log of a machine with the other order of bytes: the checksums of the header are made anew by hand."""
    path = tmp_path / "wal"
    words = [0x377F0683, 3007000, 4096, 0, 1, 2]
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) % 2**32
        second = (second + odd + first) % 2**32
    path.write_bytes(b"".join(word.to_bytes(4, "big") for word in [*words, first, second]))
    assert read_tail(path, 0) == WalTail()


@pytest.mark.parametrize(
    ("cut", "damaged", "expected"),
    [
        (1, None, {"log_level": "warning", "event": "journal ends in an unfinished write, which is left out"}),
        (0, 2, {"log_level": "error", "lost_commits": 4}),
        (0, None, None),
    ],
)
async def test_what_is_left_out_is_said_once(
    tmp_path: Path, cut: int, damaged: int | None, expected: dict[str, object] | None
) -> None:
    path = tmp_path / "journal"
    wal = crashed(path, 5)
    if damaged is not None:
        flip(FRAME)(wal, markers(wal)[damaged])
    write(path, wal[: len(wal) - cut])
    with capture_logs() as logs:
        for _ in range(2):
            await (await open_journal(path)).close()
    if expected is None:
        assert logs == []
    else:
        (line,) = logs
        assert expected.items() <= line.items()


def test_sqlite_itself_reads_no_more_than_that(tmp_path: Path) -> None:
    """The premise: it ignores what follows a damaged frame, and says nothing."""
    path = tmp_path / "journal"
    wal = crashed(path, 5)
    flip(FRAME)(wal, markers(wal)[2])
    write(path, wal)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT sequence_id FROM requests").fetchall() == [(1,)]
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
