"""What do two processes and gRPC between them cost? The same core and engine, in one process and in two, in turns.

    GOMP_SPINCOUNT=0 python -m bench.split_cost --model FOLDER

In one process, a loop plans a step, computes it and takes the result in, one after the other. In two, the scheduler's
own loop drives an executor process with two plans in flight. Neither has clients: tokens are counted and dropped. All
requests are sent at once and have different prompts in every round. Prints output tokens/s and the CPU time of a token,
all processes together, and two processes over one for both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from bench.processes import START_S, cpu_s, free_address, running
from common import log
from common.errors import CitybusError
from common.metrics import ExecutorMetrics, SchedulerMetrics
from common.step import Sampling
from common.step_executor import StepExecutor
from executor_svc.config import Config as ExecutorConfig
from executor_svc.startup import load_engine
from scheduler_svc.config import Config as SchedulerConfig
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.request import Request, SequenceUpdate
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.executor_client import ExecutorClient
from scheduler_svc.journal import NoJournal
from scheduler_svc.loop import SchedulerLoop
from scheduler_svc.policies.fcfs import Fcfs

Prompts = list[tuple[int, ...]]

GREEDY = Sampling(temperature=0.0)


class Ending:
    """A sink that counts, and waits for the end."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def push(self, update: SequenceUpdate) -> None:
        self.num_tokens += len(update.token_ids)
        if update.outcome is not None:
            self.ended.set_result(None)

    def fail(self, error: CitybusError) -> None:
        self.ended.set_exception(error)


def in_one(engine: StepExecutor, prompts: Prompts, max_tokens: int) -> float:
    """Output tokens/s of a core and an engine in this process."""
    info = engine.describe()
    core = Scheduler(info, GuardedPolicy(Fcfs()), term=engine.open(info.epoch, False), window=1)
    started, num_tokens = time.perf_counter(), 0
    for key, prompt in enumerate(prompts):
        core.add(Request(key, prompt, GREEDY, started, max_tokens=max_tokens))
    while (plan := core.schedule(time.perf_counter())) is not None:
        updates = core.apply(engine.step(plan), time.perf_counter())
        num_tokens += sum(len(update.token_ids) for update in updates)
    return num_tokens / (time.perf_counter() - started)


async def in_two(loop: SchedulerLoop, prompts: Prompts, max_tokens: int) -> float:
    """Output tokens/s of the scheduler's loop, which drives an executor in a process of its own."""
    started, endings = time.perf_counter(), [Ending() for _ in prompts]
    for prompt, ending in zip(prompts, endings, strict=True):
        (number,) = loop.next_sequence_ids(1)
        loop.submit(Request(number, prompt, GREEDY, time.monotonic(), max_tokens=max_tokens), [ending])
    await asyncio.gather(*(ending.ended for ending in endings))
    return sum(ending.num_tokens for ending in endings) / (time.perf_counter() - started)


@contextlib.asynccontextmanager
async def driving(model: Path, address: str) -> AsyncIterator[SchedulerLoop]:
    """The scheduler's loop, once it drives the executor at an address."""
    serving = asyncio.Event()

    async def on_serving(is_serving: bool) -> None:
        serving.set()

    loop = SchedulerLoop(
        ExecutorClient(address),
        GuardedPolicy(Fcfs()),
        SchedulerConfig(model=model),
        SchedulerMetrics(CollectorRegistry()),
        NoJournal(),
        on_serving=on_serving,
        on_hand_over=lambda found: None,
        on_plan=lambda plan: None,
    )
    task = asyncio.create_task(loop.run(lambda info: []))
    try:
        async with asyncio.timeout(START_S):
            await serving.wait()
        yield loop
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def run(options: argparse.Namespace) -> dict[str, int | list[float]]:
    """The report."""
    settings = ExecutorConfig(model=options.model, num_blocks=options.num_blocks)
    engine = load_engine(settings, ExecutorMetrics(CollectorRegistry()))
    address, chance = free_address(), random.Random(1)
    flags = ("--listen", address, "--num-blocks", str(options.num_blocks), "--log-level", "warning")
    speeds: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    async with (
        running("executor_svc", "--model", str(options.model), *flags) as process,
        driving(options.model, address) as loop,
    ):
        for number in range(-1, options.rounds):
            prompts = _prompts(options.requests, engine.describe().vocab_size, chance)
            for two in (False, True) if number % 2 == 0 else (True, False):  # a drift hits both alike
                before = time.process_time() + cpu_s(process.pid)
                if two:
                    speed = await in_two(loop, prompts, options.max_tokens)
                else:
                    speed = in_one(engine, prompts, options.max_tokens)
                if number >= 0:  # the first pass through a model is slower
                    speeds[two].append(speed)
                    spent_s = time.process_time() + cpu_s(process.pid) - before
                    costs[two].append(1000 * spent_s / (options.requests * options.max_tokens))
    return {
        "requests": options.requests,
        "tokens each": options.max_tokens,
        **_compared("tokens/s", speeds),
        **_compared("CPU ms/token", costs),
    }


def _compared(name: str, found: dict[bool, list[float]]) -> dict[str, list[float]]:
    ratios = [two / one for one, two in zip(found[False], found[True], strict=True)]
    return {
        f"{name} in one process": _rounded(found[False], 3),
        f"{name} in two": _rounded(found[True], 3),
        f"{name}, two / one: median, least, most": _rounded((statistics.median(ratios), min(ratios), max(ratios)), 3),
    }


def _prompts(count: int, vocab_size: int, chance: random.Random) -> Prompts:
    """32 to 64 tokens each."""
    return [tuple(chance.randrange(vocab_size) for _ in range(chance.randint(32, 64))) for _ in range(count)]


def _rounded(values: Iterable[float], digits: int) -> list[float]:
    return [round(value, digits) for value in values]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options in a command line; None is that of the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="model folder; `citybus model path default` names one"
    )
    parser.add_argument("--requests", type=int, default=64, help="requests at once (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of an answer (default %(default)s)")
    parser.add_argument("--num-blocks", type=int, default=1024, help="blocks of each pool (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each kind (default %(default)s)")
    return parser.parse_args(arguments)


def main() -> int:
    options = options_of(None)
    log.configure("bench", "warning")
    print(json.dumps(asyncio.run(run(options))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
