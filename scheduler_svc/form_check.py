"""Tries the forms of requests before they are accepted, beside the event loop and in bounded time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path

import structlog

from common.errors import InvalidRequest, Unavailable
from common.grammar import Grammar
from scheduler_svc.forms import Form

_MAX_KNOWN = 1024
"""Forms of which the verdict is kept."""

_ANSWER_S = 60.0
"""Most that an answer may take by the clock: the worker ends itself by its processor time, long before."""

_TOO_SLOW = "it takes too long to compile or to follow: simplify it"
_TOO_LARGE = "it takes too much memory to compile: simplify it"
_CAUSES = {-signal.SIGPROF: _TOO_SLOW, -signal.SIGABRT: _TOO_LARGE, -signal.SIGSEGV: _TOO_LARGE}

log = structlog.get_logger()


class FormCheck:
    """Tries forms with the tokenizer of the model in `folder`, one after the other, in a process of its own.

    The process starts with the first form, and again after one that it died of.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._worker: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._faults: OrderedDict[bytes, str | None] = OrderedDict()
        """What is wrong with the forms that were tried last, by their digests."""

    async def check(self, form: Form, vocab_size: int) -> None:
        """Raise `InvalidRequest` where no answer of a model with so many tokens can be held to `form`."""
        digest = blake2b(f"{form.grammar.kind}:{form.grammar.source}".encode(), digest_size=16).digest()
        if digest not in self._faults:
            await self._turn.acquire()  # who goes away while it waits leaves the queue
            # The worker's answer is taken in any case: a caller who goes away must not leave it to the next one.
            trying = asyncio.create_task(self._try(digest, form.grammar, vocab_size))
            trying.add_done_callback(lambda _: self._turn.release())
            await asyncio.shield(trying)
        self._faults.move_to_end(digest)
        if (fault := self._faults[digest]) is not None:
            raise InvalidRequest(f"{form.field}: {fault}")

    async def close(self) -> None:
        """End the process."""
        if self._worker is not None:
            with contextlib.suppress(ProcessLookupError):
                self._worker.kill()
            await self._worker.wait()

    async def _try(self, digest: bytes, grammar: Grammar, vocab_size: int) -> None:
        """Only who has the turn may try, and has it until this returns."""
        if digest not in self._faults:  # it may have been tried while this one waited
            self._faults[digest] = await self._ask(grammar, vocab_size)
            if len(self._faults) > _MAX_KNOWN:
                self._faults.popitem(last=False)

    async def _ask(self, grammar: Grammar, vocab_size: int) -> str | None:
        """What is wrong with `grammar`."""
        worker = self._worker or await self._start(vocab_size)
        assert worker.stdin is not None
        line = json.dumps({"kind": grammar.kind.value, "source": grammar.source})
        worker.stdin.write(line.encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await worker.stdin.drain()
        return await self._answer(worker)

    async def _start(self, vocab_size: int) -> asyncio.subprocess.Process:
        """Raises `InvalidRequest` where the model's tokenizer cannot follow a grammar."""
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "scheduler_svc.form_worker", str(self._folder.resolve()), str(vocab_size)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # it could quote what it was given
        )
        self._worker = worker
        if (fault := await self._answer(worker)) is not None:
            self._worker = None
            await worker.wait()
            raise InvalidRequest(f"structured_output: {fault}")
        return worker

    async def _answer(self, worker: asyncio.subprocess.Process) -> str | None:
        assert worker.stdout is not None
        try:
            async with asyncio.timeout(_ANSWER_S):
                line = await worker.stdout.readline()
        except TimeoutError:
            worker.kill()
            line = b""
        if line:
            fault: str | None = json.loads(line)
            return fault
        self._worker = None
        status = await worker.wait()
        log.warning("the process that tries forms has ended", status=status)
        if (cause := _CAUSES.get(status)) is None:
            raise Unavailable("structured_output could not be checked: try again", retry_after_s=1.0)
        return cause
