"""A journal in a file. One thread writes; whatever has gathered while it wrote is its next batch (group commit)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from common.errors import StartupError, Unavailable
from scheduler_svc.core.request import Beginning, Outcome
from scheduler_svc.journal_file import Batch, Entry, JournalFile
from scheduler_svc.journal_lock import JournalLock
from scheduler_svc.journal_records import beginning_to_json, outcome_to_json
from scheduler_svc.wal_tail import WalTail

TOKENS_WAIT_S = 0.1
"""How long tokens gather before they are written. What a crash of both processes takes is drawn again, the same."""

_LOCK_INTERVAL_S = 0.02
_COMPACT_INTERVAL_S = 10.0
_RETRY_S = 1.0

log = structlog.get_logger()


class FileJournal:
    """`scheduler_svc.journal.Journal` in a file. To be made inside a running event loop."""

    lasts = True

    def __init__(self, file: JournalFile, lock: JournalLock) -> None:
        self._file = file
        self._lock = lock
        self._entries = file.read()
        self.policy = file.read_policy()
        self.last_id = max((entry.sequence_id for entry in self._entries), default=0)
        self._batch = Batch()
        self._gathering = _future()
        self._writing = _future()
        self._writing.set_result(None)
        self._some, self._urgent = asyncio.Event(), asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "journal")
        self.fails = False
        self._on_change: Callable[[], Awaitable[None]] | None = None
        self._compacted = 0.0
        self._writer = asyncio.create_task(self._write())

    def watch(self, on_change: Callable[[], Awaitable[None]]) -> None:
        self._on_change = on_change

    def take_entries(self) -> list[Entry]:
        entries, self._entries = self._entries, []
        return entries

    async def accept(self, sequence_ids: Sequence[int], request: bytes) -> None:
        if not self.fails:
            first, now = sequence_ids[0], time.time()
            self._batch.accepted += [
                Entry(number, first, now, request if number == first else b"") for number in sequence_ids
            ]
            await self.flushed()
        if self.fails:
            raise Unavailable("the server cannot write its journal: send the request to another one")

    def append(self, sequence_id: int, first_index: int, token_ids: Sequence[int]) -> None:
        self._batch.add_tokens(sequence_id, first_index, token_ids)
        self._some.set()

    def begin(self, sequence_id: int, beginning: Beginning) -> None:
        self._batch.beginnings.append((sequence_id, beginning_to_json(beginning)))
        self._some.set()

    def end(self, sequence_id: int, outcome: Outcome) -> None:
        self._batch.outcomes.append((sequence_id, time.time(), outcome_to_json(outcome)))
        self._some.set()

    def remember_policy(self, record: bytes) -> None:
        self._batch.policy = record
        self._some.set()

    async def flushed(self) -> None:
        if self.fails:
            return
        if self._batch:
            self._urgent.set()
            self._some.set()
        await asyncio.shield(self._gathering if self._batch else self._writing)

    async def close(self) -> None:
        await self.flushed()
        self._writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._writer
        self._thread.shutdown()
        self._file.close()
        self._lock.release()

    async def _write(self) -> None:
        """Commit batch after batch; tokens alone may wait a moment for company. One that fails is tried again."""
        while True:
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TOKENS_WAIT_S):
                    await self._urgent.wait()
            self._some.clear()
            self._urgent.clear()
            batch, self._batch = self._batch, Batch()
            self._writing, self._gathering = self._gathering, _future()
            await self._note(await self._failure_of(batch))
            self._writing.set_result(None)
            if self.fails:  # nobody waits for what gathers meanwhile
                self._gathering.set_result(None)
                self._gathering = _future()
                await asyncio.sleep(_RETRY_S)
                batch.add(self._batch)
                self._batch = batch
                self._some.set()

    async def _failure_of(self, batch: Batch) -> Exception | None:
        """Commit a batch; returns why that failed."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, batch)
        except Exception as error:
            return error
        return None

    async def _note(self, failure: Exception | None) -> None:
        has_changed = self.fails != (failure is not None)
        if failure is not None and not self.fails:
            log.error("journal cannot be written: new requests are refused until it can", reason=str(failure))
        elif failure is None and self.fails:
            log.info("journal is written again")
        self.fails = failure is not None
        if has_changed and self._on_change is not None:
            await self._on_change()

    def _commit(self, batch: Batch) -> None:
        self._file.commit(batch)
        if time.monotonic() - self._compacted > _COMPACT_INTERVAL_S:
            self._compacted = time.monotonic()
            self._file.compact(time.time())


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def open_journal(path: Path) -> FileJournal:
    """The journal at `path`, once it is ours: until then this scheduler is a standby. Raises `StartupError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(
            f"cannot write the journal {path} ({error.strerror}): choose another file, or none, with --journal"
        ) from error
    if path.is_dir():
        raise StartupError(f"the journal {path} is a folder: name a file in it, {path / 'journal'}, with --journal")
    lock = JournalLock(path)
    if not lock.take():
        log.info("standby", journal=str(path))
        while not lock.take():
            await asyncio.sleep(_LOCK_INTERVAL_S)
    file = JournalFile(path)
    _report(file.tail, path)
    return FileJournal(file, lock)


def _report(tail: WalTail, path: Path) -> None:
    """Say what of the journal is not there any more; nothing of it is guessed."""
    if tail.lost_commits or tail.header_is_damaged:
        log.error(
            "journal has lost records: requests accepted in them are unknown, and their clients get NOT_FOUND",
            journal=str(path),
            lost_commits="all since the last checkpoint" if tail.header_is_damaged else tail.lost_commits,
        )
    elif tail:
        log.warning("journal ends in an unfinished write, which is left out", journal=str(path), frames=tail.frames)
