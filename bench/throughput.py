"""How many tokens a second, and how soon the first? Sends prompts all at once, and each alone before.

Run a server first, then: python -m bench.throughput
Answers are greedy and all of the same length; every round has a cache salt of its own, so that its cache is cold.
Times are the client's: from sending to a message's arrival.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import statistics
import time
from dataclasses import dataclass

from bench.prompts import BUILT_IN
from citybus import AsyncClient

ALONE = 8
"""Prompts sent one by one for the time to the first token of an idle server."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds to the first token and to the last, and the number of tokens."""

    first_s: float
    last_s: float
    num_tokens: int


async def ask(client: AsyncClient, prompt: str, max_tokens: int, salt: str) -> Answer:
    """One answer of `max_tokens` tokens."""
    started = time.perf_counter()
    first_s = 0.0
    num_tokens = 0
    async with client.generate(
        messages=[{"role": "user", "content": prompt}],
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=True,
        cache_salt=salt,
    ) as stream:
        async for delta in stream:
            first_s = first_s or time.perf_counter() - started
            num_tokens += len(delta.token_ids)
    return Answer(first_s, time.perf_counter() - started, num_tokens)


async def run(address: str, requests: int, max_tokens: int, rounds: int) -> dict[str, object]:
    """The report."""
    prompts = [BUILT_IN[index % len(BUILT_IN)] for index in range(requests)]
    async with AsyncClient(address) as client:
        await client.wait_ready()
        await ask(client, prompts[0], max_tokens, secrets.token_hex(8))  # the first pass through a model is slower
        alone = [await ask(client, prompt, max_tokens, secrets.token_hex(8)) for prompt in prompts[:ALONE]]
        speeds, firsts = [], []
        for _ in range(rounds):
            salt = secrets.token_hex(8)
            started = time.perf_counter()
            answers = await asyncio.gather(*(ask(client, prompt, max_tokens, salt) for prompt in prompts))
            speeds.append(sum(answer.num_tokens for answer in answers) / (time.perf_counter() - started))
            firsts += [answer.first_s for answer in answers]
    return {
        "requests": requests,
        "tokens each": max_tokens,
        "tokens/s at once": [round(speed, 1) for speed in sorted(speeds)],
        "tokens/s alone": round(statistics.median(answer.num_tokens / answer.last_s for answer in alone), 1),
        "first token ms alone, median": round(1000 * statistics.median(answer.first_s for answer in alone)),
        "first token ms at once, median": round(1000 * statistics.median(firsts)),
        "first token ms at once, last": round(1000 * max(firsts)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:50051", help="the server (default %(default)s)")
    parser.add_argument("--requests", type=int, default=64, help="requests at once (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of an answer (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="times all are sent at once (default %(default)s)")
    options = parser.parse_args()
    report = asyncio.run(run(options.address, options.requests, options.max_tokens, options.rounds))
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
