"""A client process for tests that kill it: `python -m tests.e2e.field_cases.crowd ADDRESS COUNT PROMPT ANSWER`.

It says "begun", then streams COUNT answers of ANSWER tokens at once, to prompts of PROMPT tokens, until it is killed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from citybus import AsyncClient
from tests.harness import ROOT


@contextmanager
def crowd(address: str, count: int, prompt: int, answer: int) -> Iterator[subprocess.Popen[bytes]]:
    """The process, once it has begun; it does not outlive the block."""
    command = [sys.executable, "-m", __spec__.name, address, str(count), str(prompt), str(answer)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"begun\n"
            yield process
        finally:
            process.kill()


async def stream_all(address: str, count: int, prompt: int, answer: int) -> None:
    """Read `count` answers at once."""

    async def read(number: int) -> None:
        token_ids = [number % 250, *(position % 250 for position in range(prompt - 1))]
        salt = uuid.uuid4().hex
        async with client.generate(token_ids=token_ids, max_tokens=answer, ignore_eos=True, cache_salt=salt) as stream:
            async for _ in stream:
                pass

    async with AsyncClient(address, reconnect=None) as client:  # it is never to be waited for
        print("begun", flush=True)
        await asyncio.gather(*map(read, range(count)))


if __name__ == "__main__":
    asyncio.run(stream_all(sys.argv[1], *map(int, sys.argv[2:])))
