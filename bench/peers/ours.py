"""Our server as one that is measured: `citybus serve` as its users start it, and a client over gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.peers.peer import Speed
from bench.processes import START_S, free_address
from citybus.async_client import AsyncClient


class Ours:
    """Our server with the model loaded, from entering to leaving."""

    def __init__(self, model: Path, seats: int, log: Path) -> None:
        self.address, admin, executor = (free_address() for _ in range(3))
        self._folder = tempfile.TemporaryDirectory()
        addresses = (f"--listen={self.address}", f"--admin-listen={admin}", f"--executor-listen={executor}")
        journal = f"--journal={self._folder.name}/journal"
        options = (f"--model={model}", f"--max-sequences={seats}", journal, *addresses)
        self._command = [sys.executable, "-m", "citybus", "serve", *options]
        self._log = log.open("ab")
        self.first_token_s = 0.0

    def __enter__(self) -> Self:
        started = time.perf_counter()
        self._process = subprocess.Popen(
            self._command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            self.answer([[1]], [1])
            self.first_token_s = time.perf_counter() - started
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def answer(self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int]) -> Speed:
        """As `Server.answer`. Raises RuntimeError where our server gave too few tokens, and `CitybusError`."""
        speed = asyncio.run(self._answer(prompts, output_tokens))
        if speed.output_tokens != sum(output_tokens):
            raise RuntimeError(f"our server gave {speed.output_tokens} tokens, {sum(output_tokens)} were asked for")
        return speed

    async def _answer(self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int]) -> Speed:
        salt = os.urandom(8).hex()  # nothing is found of an earlier round: the others cache no prefixes either
        async with AsyncClient(self.address) as client:
            await client.wait_ready(START_S)

            async def one(prompt: Sequence[int], count: int) -> int:
                stream = client.generate(
                    token_ids=prompt, temperature=0.0, max_tokens=count, ignore_eos=True, cache_salt=salt
                )
                return sum([len(delta.token_ids) async for delta in stream])

            started = time.perf_counter()
            counts = await asyncio.gather(*map(one, prompts, output_tokens))
            return Speed(time.perf_counter() - started, sum(counts))

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        self._folder.cleanup()
