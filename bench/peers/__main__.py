"""How fast are other servers with the same weights and requests, on the same machine?

Run our server first, then: python -m bench.peers --model FOLDER --peer transformers

All requests are sent at once, in rounds: ours, the peer, the peer, ours and so on, so that what drifts on the machine
touches both. A round before them counts for nothing. Peers run in process, without a wire; ours is measured by a
client over gRPC. Each peer has a virtual environment of its own, made when it is first needed. A line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Callable
from pathlib import Path

from bench.peers.peer import REQUIREMENTS, Peer, python_of
from citybus.bench.prompts import prompts
from citybus.bench.run import Settings, find_target, run
from citybus.bench.workload import Call, Lengths, drawn


def rounds_of(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """(ours, theirs) of each round; who is first takes turns."""
    speeds = []
    for turn in range(rounds):
        first, second = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
        pair = first(), second()
        speeds.append(pair if turn % 2 == 0 else (pair[1], pair[0]))
    return speeds


def our_speed(address: str, calls: list[Call], seed: int) -> float:
    """Output tokens per second. Raises RuntimeError where a request failed."""
    found = asyncio.run(run(Settings(address, seed=seed), calls, "ours"))
    if found.summary.failures:
        raise RuntimeError(f"requests to our server failed: {found.summary.failures}")
    return found.summary.output_tokens_per_s


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--peer", choices=tuple(REQUIREMENTS), required=True, help="what to compare with")
    add("--model", type=Path, required=True, help="the model folder that our server serves")
    add("--address", default="127.0.0.1:50051", help="our server (default %(default)s)")
    add("--venvs", type=Path, default=Path("build/peers"), help="where environments are made (default %(default)s)")
    add("--requests", type=int, default=32, help="requests at once (default %(default)s)")
    add("--prompt-tokens", type=Lengths.parse, default=Lengths(16, 256), help="tokens of a prompt (default 16-256)")
    add("--output-tokens", type=Lengths.parse, default=Lengths(16, 128), help="tokens of an answer (default 16-128)")
    add("--rounds", type=int, default=3, help="rounds that count (default %(default)s)")
    add("--seed", type=int, default=0, help="of the workload (default %(default)s)")
    options = parser.parse_args()
    vocab = asyncio.run(find_target(Settings(options.address))).model.vocab_size
    calls = drawn(options.requests, options.prompt_tokens, options.output_tokens, options.seed)
    asked = prompts(calls, vocab, options.seed)
    venvs = options.venvs.resolve()
    python = python_of(options.peer, venvs)
    with Peer(options.peer, options.model.resolve(), python, venvs / f"{options.peer}.log") as peer:
        speeds = rounds_of(
            lambda: our_speed(options.address, calls, options.seed),
            lambda: peer.answer(asked, [call.num_output for call in calls]).tokens_per_s,
            options.rounds + 1,
        )[1:]
    ratios = sorted(ours / theirs for ours, theirs in speeds)
    report = {
        "peer": options.peer,
        "requests": len(calls),
        "our tokens/s": [round(ours, 1) for ours, _ in speeds],
        "peer's tokens/s": [round(theirs, 1) for _, theirs in speeds],
        "ours / peer's": {
            "median": round(statistics.median(ratios), 2),
            "least": round(ratios[0], 2),
            "most": round(ratios[-1], 2),
        },
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
