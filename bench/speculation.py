"""What does speculation gain? Texts that repeat themselves, and others, in turn without and with it.

    python -m bench.speculation --model FOLDER

Every round has a scheduler of its own; the executor stays. Answers are greedy and all of the same length, and the bench
ends with an error where one differs. Prints output tokens/s of one request at a time and of several at once, and how
many of the guesses were right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.processes import START_S, free_address, running
from bench.prompts import BUILT_IN
from citybus import AsyncClient
from common import log

REPEATING = tuple(2 * ("\n".join(BUILT_IN[index : index + 7]) + "\n\n") for index in range(0, 56, 7))
"""Texts that stand there twice, and that a model goes on to write a third time."""
OTHER = BUILT_IN[3::8]

Figures = dict[str, float]


async def speed(
    client: AsyncClient, prompts: Sequence[str], max_tokens: int, told: dict[str, tuple[int, ...]]
) -> float:
    """Output tokens a second of `prompts` at once. Raises AssertionError where an answer is another than before."""
    salt, started = secrets.token_hex(8), time.perf_counter()
    answers = await asyncio.gather(
        *(
            client.complete(
                prompt,
                temperature=0.0,
                max_tokens=max_tokens,
                ignore_eos=True,
                cache_salt=salt,
            )
            for prompt in prompts
        )
    )
    wall_s = time.perf_counter() - started
    for prompt, answer in zip(prompts, answers, strict=True):
        assert told.setdefault(prompt, answer.token_ids) == answer.token_ids, "an answer has changed"
    return len(prompts) * max_tokens / wall_s


async def play(options: argparse.Namespace, executor: str, guesses: int, told: dict[str, tuple[int, ...]]) -> Figures:
    """A scheduler's life: one answer to warm up, then each kind of prompt one by one, and all at once."""
    listen, metrics = free_address(), free_address()
    flags = ("--executor", executor, "--listen", listen, "--admin-listen", "127.0.0.1:0", "--log-level", "warning")
    command = ("scheduler_svc", "--model", str(options.model), "--metrics-listen", metrics, *flags)
    found: Figures = {}
    async with running(*command, "--speculative-tokens", str(guesses)), AsyncClient(listen) as client:
        await client.wait_ready(START_S)
        await speed(client, REPEATING[:1], options.max_tokens, told)
        for kind, prompts in {"repeating": REPEATING, "other": OTHER}.items():
            before = await asyncio.to_thread(counted, metrics)
            alone = [await speed(client, [prompt], options.max_tokens, told) for prompt in prompts[: options.alone]]
            found[f"{kind}, alone"] = statistics.median(alone)
            found[f"{kind}, {len(prompts)} at once"] = await speed(client, prompts, options.max_tokens, told)
            drafted, accepted = (
                after - first for after, first in zip(await asyncio.to_thread(counted, metrics), before, strict=True)
            )
            if drafted:
                found[f"{kind}, guesses a token"] = drafted / ((options.alone + len(prompts)) * options.max_tokens)
                found[f"{kind}, share of them right"] = accepted / drafted
    return found


def counted(metrics: str) -> tuple[float, float]:
    """Tokens guessed so far, and those of them that were right."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    prefix = "citybus:spec_decode_num"
    return samples[f"{prefix}_draft_tokens_total"], samples[f"{prefix}_accepted_tokens_total"]


async def run(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """The report: for every figure the rounds without, with, and the ratio of the medians."""
    rounds: dict[int, list[Figures]] = {0: [], options.speculative_tokens: []}
    told: dict[str, tuple[int, ...]] = {}
    listen = free_address()
    async with running("executor_svc", "--model", str(options.model), "--listen", listen, "--log-level", "warning"):
        for number in range(options.rounds):
            for guesses in sorted(rounds, reverse=number % 2 == 1):  # a drift hits both alike
                rounds[guesses].append(await play(options, listen, guesses, told))
    without, with_it = rounds[0], rounds[options.speculative_tokens]
    report: dict[str, dict[str, object]] = {}
    for name in with_it[0]:
        of = {"with": [each[name] for each in with_it]} | (
            {"without": [each[name] for each in without]} if name in without[0] else {}
        )
        report[name] = {kind: [round(value, 2) for value in values] for kind, values in of.items()}
        if "without" in of:
            report[name]["ratio"] = round(statistics.median(of["with"]) / statistics.median(of["without"]), 2)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="model folder; `citybus model path default` names one"
    )
    parser.add_argument("--speculative-tokens", type=int, default=4, help="as the scheduler's (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens of an answer (default %(default)s)")
    parser.add_argument("--alone", type=int, default=4, help="requests one by one (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each kind (default %(default)s)")
    options = parser.parse_args()
    log.configure("bench", "warning")
    print(json.dumps(asyncio.run(run(options)), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
