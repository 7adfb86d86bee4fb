"""How fast are other servers with the same weights and requests, on the same machine?

    python -m bench.peers --model FOLDER --peer vllm --peer openvino

Ours and the peers are started, and measured in rounds on each of three workloads, in turned order: what drifts
on the machine touches all. A round before them counts for nothing. Who is not measured is stopped; ours idles.
Peers run in process, without a wire; ours is measured by a client over gRPC, on the same cores. Each peer has an
environment of its own, made when it is first needed. Progress on stderr, then a line of JSON for each comparison.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.peers.environments import PEERS, environment
from bench.peers.ours import Ours
from bench.peers.peer import Peer, Server
from bench.peers.worker import SEATS
from bench.peers.workloads import Workload, at_once, single
from citybus.bench.workload import Lengths

OURS = "citybus"


def measured(servers: Mapping[str, Server], workload: Workload, rounds: int) -> dict[str, list[float]]:
    """The figures of each server, round by round; who is first takes turns. A first round is thrown away."""
    names = list(servers)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-1, rounds):
        start = turn % len(names)
        for name in (*names[start:], *names[:start]):
            figure = workload.measure(servers[name])
            _say(f"{workload.name}, round {turn + 1} of {rounds}: {name} {figure:.1f} {workload.unit}")
            if turn >= 0:
                found[name].append(figure)
    return found


def compared(workload: Workload, figures: Mapping[str, Sequence[float]]) -> Iterator[dict[str, object]]:
    """One report for each peer. A ratio over 1 is in our favour."""
    for name in figures:
        if name == OURS:
            continue
        pairs = zip(figures[OURS], figures[name], strict=True)
        ratios = sorted(ours / theirs if workload.more_is_better else theirs / ours for ours, theirs in pairs)
        yield {
            "workload": workload.name,
            "unit": workload.unit,
            "peer": name,
            "ours": [round(figure, 1) for figure in figures[OURS]],
            "peer's": [round(figure, 1) for figure in figures[name]],
            "times better": {
                "median": round(statistics.median(ratios), 2),
                "least": round(ratios[0], 2),
                "most": round(ratios[-1], 2),
            },
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--peer", choices=PEERS, action="append", required=True, help="what to compare with; may be repeated")
    add("--model", type=Path, required=True, help="model folder; `citybus model path default` names one")
    add("--folder", type=Path, default=Path("build/peers"), help="where environments are made (default %(default)s)")
    add("--prompt-tokens", type=Lengths.parse, default=Lengths(16, 256), help="tokens of a prompt (default 16-256)")
    add("--output-tokens", type=Lengths.parse, default=Lengths(16, 128), help="tokens of an answer (default 16-128)")
    add("--sustained", type=int, default=4 * SEATS, help="requests of the sustained load (default %(default)s)")
    add("--rounds", type=int, default=5, help="rounds that count (default %(default)s)")
    add("--seed", type=int, default=0, help="of the workloads (default %(default)s)")
    options = parser.parse_args()
    vocab = int(json.loads((options.model / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    lengths = (options.prompt_tokens, options.output_tokens, vocab, options.seed)
    workloads = (
        at_once(f"{SEATS} at once", SEATS, *lengths),
        at_once(f"{options.sustained} at {SEATS} seats", options.sustained, *lengths),
        single(options.prompt_tokens.most, vocab, options.seed),
    )
    model, folder = options.model.resolve(), options.folder.resolve()
    made = {name: environment(name, model, folder) for name in options.peer}
    with ExitStack() as stack:
        servers: dict[str, Server] = {OURS: stack.enter_context(Ours(model, SEATS, folder / f"{OURS}.log"))}
        for name, environ in made.items():
            _say(f"starting {name}")
            servers[name] = stack.enter_context(Peer(name, environ, folder / f"{name}.log"))
        print(json.dumps({"first token, s": {name: round(each.first_token_s, 1) for name, each in servers.items()}}))
        for workload in workloads:
            for report in compared(workload, measured(servers, workload, options.rounds)):
                print(json.dumps(report), flush=True)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
