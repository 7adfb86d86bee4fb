"""How many tokens a second reach 1,000 readers? A real scheduler, and an executor whose steps take a fixed time.

    python -m bench.streams --model FOLDER

Every reader has a stream of its own and reads as fast as it can. The window that is measured begins when all have
their first token and ends when the first has its last. A message of more than one token is one that waited for its
turn. Scheduler, executor and client are a process each, and their CPU time is told apart: the client reads with
bench/http2_client.py, and is the limit only where its share of a core is near 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.http2_client import GENERATE, Http2Client, connect
from bench.processes import START_S, cpu_s, free_address, running
from citybus import AsyncClient
from citybus.v1 import generation_pb2 as pb

PROMPT_TOKENS = 16


@dataclass(slots=True)
class Reader:
    """What has come of one answer, and what is wrong with it."""

    num_tokens: int = 0
    num_messages: int = 0
    gaps: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """Time, tokens and messages of all readers, and CPU seconds of every process, at one moment."""

    time: float
    num_tokens: int
    num_messages: int
    cpu: tuple[float, ...]


class Crowd:
    """All the readers. `began` and `first_end` are set when all have a token, and when the first has its last."""

    def __init__(self) -> None:
        self.readers: list[Reader] = []
        self.began, self.first_end, self.all_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._num_begun = self._num_ended = 0

    def read(self, connection: Http2Client, request: bytes, total: int) -> None:
        """Send a request, and read its answer; there will be `total` readers."""
        reader = Reader()
        self.readers.append(reader)

        def on_message(message: bytes) -> None:
            response = pb.GenerateResponse.FromString(message)
            reader.gaps += response.first_index != reader.num_tokens
            self._num_begun += reader.num_messages == 0
            reader.num_messages += 1
            reader.num_tokens += len(response.token_ids)
            if self._num_begun == total:
                self.began.set()
            if response.HasField("finish"):
                reader.ended = True
                self._num_ended += 1
                self.first_end.set()
                if self._num_ended == total:
                    self.all_ended.set()

        connection.call(GENERATE, request, on_message)

    def reading(self, pids: tuple[int, ...]) -> Reading:
        tokens = sum(reader.num_tokens for reader in self.readers)
        messages = sum(reader.num_messages for reader in self.readers)
        cpu = (*map(cpu_s, pids), time.process_time())
        return Reading(time.perf_counter(), tokens, messages, cpu)


async def run(options: argparse.Namespace) -> dict[str, float | list[float] | None]:
    """The report."""
    executor, listen = free_address(), free_address()
    with tempfile.TemporaryDirectory() as folder:
        journal = "none" if options.no_journal else str(Path(folder, "journal.db"))
        synthetic = ("bench.synthetic", executor, str(options.step_ms), str(options.streams), "gathers")
        scheduler = (
            "scheduler_svc", "--model", str(options.model), "--executor", executor, "--listen", listen,
            "--admin-listen", "127.0.0.1:0", "--journal", journal, "--log-level", "warning",
        )  # fmt: skip
        async with running(*synthetic) as second, running(*scheduler) as first:
            async with AsyncClient(listen) as client:
                await client.wait_ready(START_S)
            return await _read(options, listen, (first.pid, second.pid))


async def _read(
    options: argparse.Namespace, listen: str, pids: tuple[int, ...]
) -> dict[str, float | list[float] | None]:
    crowd, asked = Crowd(), time.perf_counter()
    connections = [await connect(listen) for _ in range(options.connections)]
    for index in range(options.streams):
        crowd.read(connections[index % len(connections)], _request(index, options.max_tokens), options.streams)
    async with asyncio.timeout(options.timeout):
        await crowd.began.wait()
        start = crowd.reading(pids)
        await crowd.first_end.wait()
        end = crowd.reading(pids)
        await crowd.all_ended.wait()
    for connection in connections:
        connection.close()
    seconds, tokens = end.time - start.time, end.num_tokens - start.num_tokens
    shares = [(after - before) / seconds for before, after in zip(start.cpu, end.cpu, strict=True)]
    return {
        "streams": options.streams,
        "connections": options.connections,
        "step ms": options.step_ms,
        "seconds until all had a token": round(start.time - asked, 2),
        "seconds measured": round(seconds, 2),
        "tokens/s": round(tokens / seconds),
        "tokens/s offered": round(1000 * options.streams / options.step_ms) if options.step_ms else None,
        "tokens a message": round(tokens / max(1, end.num_messages - start.num_messages), 3),
        "cores: scheduler, executor, client": [round(share, 2) for share in shares],
        "scheduler CPU us/token": round(1e6 * shares[0] * seconds / max(1, tokens), 1),
        "answers incomplete": sum(
            reader.num_tokens != options.max_tokens or reader.gaps > 0 for reader in crowd.readers
        ),
        "streams broken": sum(connection.broken for connection in connections),
    }


def _request(index: int, max_tokens: int) -> bytes:
    return pb.GenerateRequest(
        tokens=pb.TokenPrompt(ids=[1 + index % 200, index // 200, *([2] * (PROMPT_TOKENS - 2))]),
        sampling=pb.SamplingParams(temperature=0.0),
        stopping=pb.StopParams(max_tokens=max_tokens, ignore_eos=True),
    ).SerializeToString()


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options in a command line; None is that of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="model folder; `citybus model path default` names one"
    )
    parser.add_argument("--streams", type=int, default=1000, help="streams at once (default %(default)s)")
    parser.add_argument("--connections", type=int, default=10, help="connections they share (default %(default)s)")
    parser.add_argument("--step-ms", type=float, default=40.0, help="time of a step (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=400, help="tokens of an answer (default %(default)s)")
    parser.add_argument("--no-journal", action="store_true", help="a scheduler without a journal")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which to give up (%(default)s)")
    return parser.parse_args(arguments)


def main() -> int:
    print(json.dumps(asyncio.run(run(options_of(None)))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
