"""What does the journal cost? Rounds of many requests at once, in turn without and with a journal, on one executor.

    python -m bench.journal_cost --model FOLDER
    python -m bench.journal_cost --model FOLDER --synthetic --max-tokens 512

Every round has a scheduler of its own; the executor stays. With `--synthetic` that only counts, so that tokens come as
fast as the scheduler can deliver them. Prints output tokens/s, and the CPU time of the scheduler's process (Linux) for
an output token, in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import START_S, cpu_s, free_address, running
from bench.prompts import BUILT_IN
from bench.synthetic import SyntheticExecutor, served
from bench.throughput import ask
from citybus import AsyncClient
from common import log


@dataclass(frozen=True, slots=True)
class Round:
    """Output tokens a second, and the scheduler's CPU time for each, in microseconds."""

    tokens_per_s: float
    cpu_us: float


@asynccontextmanager
async def executor(model: Path, *, synthetic: bool) -> AsyncIterator[str]:
    """The address of an executor."""
    listen = free_address()
    if not synthetic:
        async with running("executor_svc", "--model", str(model), "--listen", listen, "--log-level", "warning"):
            yield listen
        return
    async with served(SyntheticExecutor(), listen):
        yield listen


async def play(options: argparse.Namespace, executor: str, journal: str) -> Round:
    """A scheduler's life: one answer to warm up, then all at once."""
    listen = free_address()
    flags = ("--executor", executor, "--listen", listen, "--admin-listen", "127.0.0.1:0", "--log-level", "warning")
    prompts = [BUILT_IN[index % len(BUILT_IN)] for index in range(options.requests)]
    command = ("scheduler_svc", "--model", str(options.model), "--journal", journal, *flags)
    async with running(*command) as process, AsyncClient(listen) as client:
        await client.wait_ready(START_S)
        await ask(client, prompts[0], options.max_tokens, secrets.token_hex(8))
        salt = secrets.token_hex(8)
        cpu, started = cpu_s(process.pid), time.perf_counter()
        answers = await asyncio.gather(*(ask(client, prompt, options.max_tokens, salt) for prompt in prompts))
        wall_s, spent_s = time.perf_counter() - started, cpu_s(process.pid) - cpu
    num_tokens = sum(answer.num_tokens for answer in answers)
    return Round(num_tokens / wall_s, 1e6 * spent_s / num_tokens)


async def run(options: argparse.Namespace) -> dict[str, object]:
    """The report."""
    found: dict[bool, list[Round]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        async with executor(options.model, synthetic=options.synthetic) as address:
            await play(options, address, "none")
            for number in range(options.rounds):
                for kept in (False, True) if number % 2 == 0 else (True, False):  # a drift hits both alike
                    journal = str(Path(folder, f"{number}.db")) if kept else "none"
                    found[kept].append(await play(options, address, journal))
    speeds = {kept: [each.tokens_per_s for each in rounds] for kept, rounds in found.items()}
    costs = {kept: [each.cpu_us for each in rounds] for kept, rounds in found.items()}
    return {
        "requests": options.requests,
        "tokens each": options.max_tokens,
        "tokens/s without": [round(speed, 1) for speed in speeds[False]],
        "tokens/s with": [round(speed, 1) for speed in speeds[True]],
        "tokens/s, with / without, medians": round(_ratio(speeds), 4),
        "of each pair": [round(one / other, 3) for other, one in zip(speeds[False], speeds[True], strict=True)],
        "CPU us/token without": [round(cost, 1) for cost in costs[False]],
        "CPU us/token with": [round(cost, 1) for cost in costs[True]],
        "CPU us/token, with / without, medians": round(_ratio(costs), 4),
    }


def _ratio(figures: dict[bool, list[float]]) -> float:
    return statistics.median(figures[True]) / statistics.median(figures[False])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="model folder; `citybus model path default` names one"
    )
    parser.add_argument("--synthetic", action="store_true", help="an executor that only counts")
    parser.add_argument("--folder", type=Path, help="where the journals are (default: the system's temporary folder)")
    parser.add_argument("--requests", type=int, default=64, help="requests at once (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of an answer (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each kind (default %(default)s)")
    options = parser.parse_args()
    log.configure("bench", "warning")
    print(json.dumps(asyncio.run(run(options))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
