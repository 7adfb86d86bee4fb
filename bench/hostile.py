"""What do hostile clients cost the others? A canary's time between tokens and the server's memory, with and without.

    python -m bench.hostile --model FOLDER
    python -m bench.hostile --model FOLDER --rounds 9 --window 10 --attacks idle_streams,endless_prompt

Starts an executor and a scheduler. In every round, each attack of `bench.attacks` is in turn absent and present, the
other way round in every second round; it runs in a process of its own. Meanwhile a canary reads one stream: the gap
between two tokens is its measure. Prints JSON: for each attack the medians of the gaps (ms), the median of the ratios
of its rounds with the least and the most, and the memory (resident, MB) of both processes before all, at most during
the attack, and in the end. Linux.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.attacks import ATTACKS
from bench.processes import START_S, free_address
from citybus import AsyncClient
from citybus.processes import child_command

READ_MEMORY_S = 0.05


@dataclass(slots=True)
class Found:
    """What one attack did: gaps between tokens of the canary by round, in seconds, and the most memory, in bytes."""

    quiet: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    most_bytes: dict[str, int] = field(default_factory=dict)

    def report(self) -> dict[str, object]:
        """As printed."""
        ratios = [attacked / quiet for quiet, attacked in zip(self.quiet, self.attacked, strict=True)]
        return {
            "gap without, ms": round(1000 * statistics.median(self.quiet), 3),
            "gap with, ms": round(1000 * statistics.median(self.attacked), 3),
            "ratio": round(statistics.median(ratios), 3),
            "ratio, least and most": [round(min(ratios), 3), round(max(ratios), 3)],
            "most memory during it, MB": _megabytes(self.most_bytes),
        }


class Target:
    """The server under attack: its address, and the processes whose memory counts."""

    def __init__(self, address: str, pids: dict[str, int]) -> None:
        self.address = address
        self._pids = pids

    def memory(self) -> dict[str, int]:
        """Resident bytes of each process."""
        return {name: _resident_bytes(pid) for name, pid in self._pids.items()}


async def run(options: argparse.Namespace) -> dict[str, object]:
    """The report."""
    found = {name: Found() for name in options.attacks.split(",")}
    async with serving(options.model) as target, AsyncClient(target.address) as client:
        await client.wait_ready(START_S)
        await gap(client, options.window)
        before = target.memory()
        for number in range(options.rounds):
            for name, each in found.items():
                for attacked in (False, True) if number % 2 == 0 else (True, False):
                    if attacked:
                        each.attacked.append(await _attacked(client, target, name, options.window, each.most_bytes))
                    else:
                        each.quiet.append(await gap(client, options.window))
        after = target.memory()
    return {
        "rounds": options.rounds,
        "window, s": options.window,
        "memory before, MB": _megabytes(before),
        "memory after, MB": _megabytes(after),
        "attacks": {name: each.report() for name, each in found.items()},
    }


async def gap(client: AsyncClient, window_s: float) -> float:
    """Mean seconds between two tokens that the canary gets within the window, over as many answers as fit."""
    ends, gaps, tokens = time.perf_counter() + window_s, 0.0, 0
    while time.perf_counter() < ends:
        last: float | None = None
        stream = client.generate(token_ids=[1, 2, 3], temperature=0.0, ignore_eos=True, max_tokens=200)
        async with stream:
            async for delta in stream:
                now = time.perf_counter()
                if last is not None:
                    gaps, tokens = gaps + now - last, tokens + len(delta.token_ids)
                last = now
                if now > ends:
                    break
    return gaps / max(tokens, 1)


async def _attacked(client: AsyncClient, target: Target, name: str, window_s: float, most: dict[str, int]) -> float:
    async with attack(name, target.address, window_s):
        watch = asyncio.create_task(_watch(target, most))
        try:
            return await gap(client, window_s)
        finally:
            watch.cancel()


async def _watch(target: Target, most: dict[str, int]) -> None:
    while True:
        for name, num_bytes in target.memory().items():
            most[name] = max(most.get(name, 0), num_bytes)
        await asyncio.sleep(READ_MEMORY_S)


@asynccontextmanager
async def attack(name: str, address: str, window_s: float) -> AsyncIterator[None]:
    """The attack, once it is ready; it does not outlive the block."""
    command = [sys.executable, "-m", "bench.attacks", name, address, str(window_s)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        if await asyncio.wait_for(process.stdout.readline(), START_S) != b"ready\n":
            raise RuntimeError(f"the attack {name} could not begin")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def serving(model: Path) -> AsyncIterator[Target]:
    """An executor and a scheduler for it."""
    addresses = [free_address() for _ in range(2)]
    common = ("--model", str(model), "--log-level", "warning")
    executor = ("executor_svc", *common, "--listen", addresses[0])
    scheduler = ("scheduler_svc", *common, "--listen", addresses[1], "--executor", addresses[0])
    async with _process(*executor) as first, _process(*scheduler, "--admin-listen", "127.0.0.1:0") as second:
        yield Target(addresses[1], {"executor": first, "scheduler": second})


@asynccontextmanager
async def _process(*module: str) -> AsyncIterator[int]:
    """A service; gives its process id."""
    process = await asyncio.create_subprocess_exec(*child_command(list(module)))
    try:
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return 1024 * int(found[1]) if found else 0


def _megabytes(sizes: dict[str, int]) -> dict[str, int]:
    return {name: round(num_bytes / 1e6) for name, num_bytes in sizes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of each measurement (default: 10)")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="names, with commas (default: all)")
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
