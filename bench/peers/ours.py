"""Our server as one that is measured: `citybus serve` as its users start it, and clients over gRPC.

They read with bench/http2_client.py, as they share the cores with the server, and peers are measured without any.
"""

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

from bench.http2_client import GENERATE, connect
from bench.peers.peer import Speed
from bench.processes import START_S, free_address
from citybus.async_client import AsyncClient
from citybus.v1 import generation_pb2 as pb

CALLS_OF_CONNECTION = 64
ANSWER_S = 600.0


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
            asyncio.run(self._wait_ready())
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
        """As `Server.answer`. Raises RuntimeError where our server gave too few tokens or broke off, TimeoutError."""
        speed = asyncio.run(self._answer(prompts, output_tokens))
        if speed.output_tokens != sum(output_tokens):
            raise RuntimeError(f"our server gave {speed.output_tokens} tokens, {sum(output_tokens)} were asked for")
        return speed

    async def _wait_ready(self) -> None:
        async with AsyncClient(self.address) as client:
            await client.wait_ready(START_S)

    async def _answer(self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int]) -> Speed:
        salt = os.urandom(8).hex()  # nothing is found of an earlier round: the others cache no prefixes either
        requests = [_request(*pair, salt) for pair in zip(prompts, output_tokens, strict=True)]
        connections = [await connect(self.address) for _ in range(-(-len(requests) // CALLS_OF_CONNECTION))]
        num_tokens, num_finished, num_ended, over = 0, 0, 0, asyncio.Event()

        def on_message(message: bytes) -> None:
            nonlocal num_tokens, num_finished
            response = pb.GenerateResponse.FromString(message)
            num_tokens += len(response.token_ids)
            num_finished += response.HasField("finish")
            if num_finished == len(requests):
                over.set()

        def on_end() -> None:
            nonlocal num_ended
            num_ended += 1
            if num_ended > num_finished:  # a finish comes before the end of its stream
                over.set()

        started = time.perf_counter()
        for index, request in enumerate(requests):
            connections[index // CALLS_OF_CONNECTION].call(GENERATE, request, on_message, on_end)
        async with asyncio.timeout(ANSWER_S):
            await over.wait()
        seconds = time.perf_counter() - started
        for connection in connections:
            connection.close()
        if num_finished < len(requests):
            raise RuntimeError(f"our server broke off an answer: {self._log.name} says why")
        return Speed(seconds, num_tokens)

    def _end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        self._folder.cleanup()


def _request(prompt: Sequence[int], num_tokens: int, salt: str) -> bytes:
    return pb.GenerateRequest(
        tokens=pb.TokenPrompt(ids=prompt),
        sampling=pb.SamplingParams(temperature=0.0),
        stopping=pb.StopParams(max_tokens=num_tokens, ignore_eos=True),
        cache_salt=salt,
    ).SerializeToString()
