"""What does speculation gain? Texts that repeat themselves, and others, in turns of seconds without and with it.

    python -m bench.speculation --model FOLDER

Two whole servers, one of which guesses; the other one is idle meanwhile. Answers are greedy and all of the same length,
and the bench ends with an error where the two servers tell different ones. Prints output tokens/s of one request at a
time and of eight at once, the ratio with / without of every turn, and how many of the guesses were right.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.processes import ROOT, START_S, free_address, running
from bench.prompts import BUILT_IN
from citybus import AsyncClient
from common import log

PARAGRAPHS = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("\n\n")
KINDS = {
    "repeating": tuple(2 * f"{text}\n\n" for text in PARAGRAPHS if 400 < len(text) < 1000 and "|" not in text)[:8],
    "other": BUILT_IN[3::8],
}
"""Texts that stand there twice, and that a model goes on to write a third time; and prompts to answer."""


@dataclass(frozen=True, slots=True)
class Server:
    """A scheduler and its executor."""

    client: AsyncClient
    metrics: str

    async def answers(self, prompts: Sequence[str], max_tokens: int) -> tuple[float, list[tuple[int, ...]]]:
        """Output tokens a second of `prompts` at once, on a cold cache, and the tokens of each."""
        salt, started = secrets.token_hex(8), time.perf_counter()
        completions = await asyncio.gather(
            *(
                self.client.complete(prompt, temperature=0.0, max_tokens=max_tokens, ignore_eos=True, cache_salt=salt)
                for prompt in prompts
            )
        )
        wall_s = time.perf_counter() - started
        return len(prompts) * max_tokens / wall_s, [completion.token_ids for completion in completions]

    def guessed(self) -> tuple[float, float]:
        """Tokens guessed so far, and those of them that were right."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        samples = {sample.name: sample.value for family in families for sample in family.samples}
        prefix = "citybus:spec_decode_num"
        return samples[f"{prefix}_draft_tokens_total"], samples[f"{prefix}_accepted_tokens_total"]


@asynccontextmanager
async def served(model: Path, speculative_tokens: int) -> AsyncIterator[Server]:
    """A server that guesses so many tokens."""
    executor, listen, metrics = free_address(), free_address(), free_address()
    common = ("--model", str(model), "--log-level", "warning")
    flags = ("--executor", executor, "--listen", listen, "--admin-listen", "127.0.0.1:0", "--metrics-listen", metrics)
    guess = ("--speculative-tokens", str(speculative_tokens))
    async with (
        running("executor_svc", *common, "--listen", executor),
        running("scheduler_svc", *common, *flags, *guess),
        AsyncClient(listen) as client,
    ):
        await client.wait_ready(START_S)
        yield Server(client, metrics)


@dataclass(frozen=True, slots=True)
class Turn:
    """Output tokens a second of the server that does not guess, and of the one that does."""

    without: float
    with_it: float


async def turn(plain: Server, guessing: Server, prompts: Sequence[str], max_tokens: int) -> Turn:
    """One after the other. Raises AssertionError where their answers differ."""
    without, expected = await plain.answers(prompts, max_tokens)
    with_it, answers = await guessing.answers(prompts, max_tokens)
    assert answers == expected, "speculation has changed an answer"
    return Turn(without, with_it)


async def compare(
    options: argparse.Namespace, plain: Server, guessing: Server, prompts: Sequence[str]
) -> dict[str, object]:
    """The report on prompts of a kind."""
    alone, at_once = [], []
    drafted, accepted = await asyncio.to_thread(guessing.guessed)
    for _ in range(options.rounds):
        for prompt in prompts[: options.alone]:
            alone.append(await turn(plain, guessing, [prompt], options.max_tokens))
        at_once.append(await turn(plain, guessing, prompts, options.max_tokens))
    after = await asyncio.to_thread(guessing.guessed)
    num_tokens = options.rounds * (options.alone + len(prompts)) * options.max_tokens
    return {
        "one at a time": _figures(alone),
        f"{len(prompts)} at once": _figures(at_once),
        "guesses a token": round((after[0] - drafted) / num_tokens, 2),
        "share of them right": round((after[1] - accepted) / max(1.0, after[0] - drafted), 2),
    }


def _figures(turns: Sequence[Turn]) -> dict[str, object]:
    ratios = sorted(each.with_it / each.without for each in turns)
    return {
        "tokens/s without, median": round(statistics.median(each.without for each in turns), 1),
        "tokens/s with, median": round(statistics.median(each.with_it for each in turns), 1),
        "with / without: least, median, most": [
            round(ratio, 2) for ratio in (ratios[0], statistics.median(ratios), ratios[-1])
        ],
    }


async def run(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """The report."""
    async with AsyncExitStack() as stack:
        plain, guessing = [
            await stack.enter_async_context(served(options.model, count)) for count in (0, options.speculative_tokens)
        ]
        await turn(plain, guessing, BUILT_IN[:1], options.max_tokens)  # the first pass through a model is slower
        return {kind: await compare(options, plain, guessing, prompts) for kind, prompts in KINDS.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="model folder; `citybus model path default` names one"
    )
    parser.add_argument("--speculative-tokens", type=int, default=8, help="as the scheduler's (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens of an answer (default %(default)s)")
    parser.add_argument("--alone", type=int, default=3, help="requests one by one (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each kind (default %(default)s)")
    options = parser.parse_args()
    log.configure("bench", "warning")
    print(json.dumps(asyncio.run(run(options)), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
