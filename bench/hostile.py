"""What do hostile clients cost the others? A canary's time between tokens and the server's memory, with and without.

    python -m bench.hostile --model FOLDER
    python -m bench.hostile --model FOLDER --step-ms 45
    python -m bench.hostile --model FOLDER --rounds 9 --window 10 --attacks idle_streams,endless_prompt

Starts an executor and a scheduler. In every round, each attack of `bench.attacks` is in turn absent and present, the
other way round in every second round; it runs in a process of its own. Meanwhile a canary reads one stream: the gap
between two tokens is its measure. With `--step-ms`, the executor computes nothing and takes that time for a step, as
one does that shares no core with the attackers: what is left is what the scheduler lets them do to others.

Prints JSON: for each attack the medians of the gaps (ms), the median of the ratios of its rounds with the least and the
most, the cores that each process takes (medians), and the memory (resident, MB) of both services before all, at most
during the attack, and in the end. Linux.
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
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.attacks import ATTACKS
from bench.processes import START_S, cpu_s, free_address, running
from citybus import AsyncClient

READ_MEMORY_S = 0.05
SEATS = 256


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean seconds between two tokens of the canary, and the cores that each process took meanwhile."""

    gap_s: float
    cores: dict[str, float]


@dataclass(slots=True)
class Found:
    """What one attack did, by round, and the most memory, in bytes."""

    quiet: list[Measured] = field(default_factory=list)
    attacked: list[Measured] = field(default_factory=list)
    most_bytes: dict[str, int] = field(default_factory=dict)

    def report(self) -> dict[str, object]:
        """As printed."""
        ratios = [attacked.gap_s / quiet.gap_s for quiet, attacked in zip(self.quiet, self.attacked, strict=True)]
        return {
            "gap without, ms": _median_ms(self.quiet),
            "gap with, ms": _median_ms(self.attacked),
            "ratio": round(statistics.median(ratios), 3),
            "ratio, least and most": [round(min(ratios), 3), round(max(ratios), 3)],
            "cores without": _median_cores(self.quiet),
            "cores with": _median_cores(self.attacked),
            "most memory during it, MB": _megabytes(self.most_bytes),
        }


class Target:
    """The server under attack: its address, and the processes whose memory counts."""

    def __init__(self, address: str, pids: dict[str, int]) -> None:
        self.address = address
        self.pids = pids

    def memory(self) -> dict[str, int]:
        """Resident bytes of each process."""
        return {name: _resident_bytes(pid) for name, pid in self.pids.items()}


async def run(options: argparse.Namespace) -> dict[str, object]:
    """The report."""
    found = {name: Found() for name in options.attacks.split(",")}
    async with serving(options.model, options.step_ms) as target, AsyncClient(target.address) as client:
        await client.wait_ready(START_S)
        await measured(client, options.window, target.pids)
        before = target.memory()
        for number in range(options.rounds):
            for name, each in found.items():
                for attacked in (False, True) if number % 2 == 0 else (True, False):
                    if attacked:
                        each.attacked.append(await _attacked(client, target, name, options.window, each.most_bytes))
                    else:
                        each.quiet.append(await measured(client, options.window, target.pids))
        after = target.memory()
    return {
        "rounds": options.rounds,
        "window, s": options.window,
        "memory before, MB": _megabytes(before),
        "memory after, MB": _megabytes(after),
        "attacks": {name: each.report() for name, each in found.items()},
    }


async def measured(client: AsyncClient, window_s: float, pids: dict[str, int]) -> Measured:
    """The canary's gap, and the cores of these processes while it was measured."""
    before, started = {name: cpu_s(pid) for name, pid in pids.items()}, time.perf_counter()
    gap_s = await gap(client, window_s)
    lasted = time.perf_counter() - started
    return Measured(gap_s, {name: (cpu_s(pid) - before[name]) / lasted for name, pid in pids.items()})


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


async def _attacked(client: AsyncClient, target: Target, name: str, window_s: float, most: dict[str, int]) -> Measured:
    async with attack(name, target.address, window_s) as attacker:
        watch = asyncio.create_task(_watch(target, most))
        try:
            return await measured(client, window_s, target.pids | {"attacker": attacker})
        finally:
            watch.cancel()


async def _watch(target: Target, most: dict[str, int]) -> None:
    while True:
        for name, num_bytes in target.memory().items():
            most[name] = max(most.get(name, 0), num_bytes)
        await asyncio.sleep(READ_MEMORY_S)


@asynccontextmanager
async def attack(name: str, address: str, window_s: float) -> AsyncIterator[int]:
    """The process id of the attack, once it is ready; it does not outlive the block."""
    command = [sys.executable, "-m", "bench.attacks", name, address, str(window_s)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        if await asyncio.wait_for(process.stdout.readline(), START_S) != b"ready\n":
            raise RuntimeError(f"the attack {name} could not begin")
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def serving(model: Path, step_ms: float | None) -> AsyncIterator[Target]:
    """An executor, which computes nothing where `step_ms` says how long its steps take, and a scheduler for it."""
    inner, outer = free_address(), free_address()
    common = ("--model", str(model), "--log-level", "warning")
    executor = (
        ("executor_svc", *common, "--listen", inner)
        if step_ms is None
        else ("bench.synthetic", inner, str(step_ms), str(SEATS))
    )
    scheduler = (
        *("scheduler_svc", *common, "--listen", outer, "--executor", inner),
        *("--admin-listen", "127.0.0.1:0", "--drain-grace", "0"),
    )
    async with running(*executor) as first, running(*scheduler) as second:
        yield Target(outer, {"executor": first.pid, "scheduler": second.pid})


def _resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return 1024 * int(found[1]) if found else 0


def _median_ms(rounds: Sequence[Measured]) -> float:
    return round(1000 * statistics.median(each.gap_s for each in rounds), 3)


def _median_cores(rounds: Sequence[Measured]) -> dict[str, float]:
    return {name: round(statistics.median(each.cores[name] for each in rounds), 2) for name in rounds[0].cores}


def _megabytes(sizes: dict[str, int]) -> dict[str, int]:
    return {name: round(num_bytes / 1e6) for name, num_bytes in sizes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--step-ms", type=float, help="an executor that computes nothing, with steps of this time")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of each measurement (default: 10)")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="names, with commas (default: all)")
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
