"""How many blocks do samples and beams of one prompt share? The real core, on an executor that draws at random.

    python -m bench.sharing
    python -m bench.sharing --lengths FILE

FILE is a CSV whose rows begin with the tokens of a prompt and of its answer. Without it, lengths have the means
of Alpaca (19 and 58 tokens) and ShareGPT (161 and 338) that the PagedAttention paper gives. Saved = 1 - blocks held /
blocks that the same tokens take where every sequence has its own, summed over all steps.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from bench.simulation import INFO
from common.logprobs import TokenLogprobs
from common.step import SampledToken, Sampling, StepPlan, StepResult
from scheduler_svc.core.beams import BeamParams
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.policy import Policy
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler

Lengths = list[tuple[int, int]]
MEANS = {"alpaca-like": (19, 58), "sharegpt-like": (161, 338)}
WIDTHS = (2, 4, 6)
CAPACITY = replace(INFO, num_blocks=16_384, max_sequences=64, max_step_tokens=4096, max_model_len=4096)


class RandomExecutor:
    """Draws at random, and finds few tokens likely: beams part as those of a model do, now and then."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.stored: dict[int, int] = {}
        self._known: dict[int, int] = {}

    def step(self, plan: StepPlan) -> StepResult:
        """The result of a plan."""
        parents = {fork.sequence_id: self.stored[fork.parent_id] for fork in plan.forks}
        for key in (*plan.finished_ids, *plan.preempted_ids):
            del self.stored[key], self._known[key]
        for new in plan.new_sequences:
            self._known[new.sequence_id] = len(new.token_ids)
            self.stored[new.sequence_id] = new.num_computed_tokens
        for fork in plan.forks:
            self.stored[fork.sequence_id] = parents[fork.sequence_id]
            self._known[fork.sequence_id] = parents[fork.sequence_id] + 1
        rows = [(row.sequence_id, row.num_tokens) for row in plan.new_sequences]
        rows += [(row.sequence_id, row.num_tokens) for row in plan.scheduled]
        rows += [(fork.sequence_id, 1) for fork in plan.forks]
        return StepResult(plan.step, tuple(token for key, count in rows for token in self._computed(key, count)))

    def _computed(self, key: int, count: int) -> Iterable[SampledToken]:
        self.stored[key] += count
        if self.stored[key] == self._known[key]:
            self._known[key] += 1
            ids = tuple(self._chance.sample(range(1000), 8))
            values = sorted((-self._chance.expovariate(0.5) for _ in ids), reverse=True)
            yield SampledToken(key, ids[0], TokenLogprobs(values[0], 1, ids, tuple(values)))


def saved(lengths: Lengths, count: int, *, beams: bool) -> float:
    """The share of blocks saved by `count` samples or beams of each prompt, one prompt at a time."""
    executor = RandomExecutor(random.Random(1))
    core = Scheduler(CAPACITY, GuardedPolicy(Policy()), term=1)
    held = unshared = 0
    for number, (num_prompt, num_output) in enumerate(lengths):
        first = 1 + number * count
        prompt = (1 + number, *[2] * (num_prompt - 1))
        sampling = Sampling(temperature=0.0, num_logprobs=8)
        asked = Request(first, prompt, sampling, 0.0, max_tokens=num_output)
        if beams:
            core.add(replace(asked, beams=BeamParams(count, 1)))
        else:
            for index in range(count):
                core.add(replace(asked, sequence_id=first + index, group=first))
        plans: list[StepPlan] = []
        while core.has_work:
            while (plan := core.schedule(0.0)) is not None:
                plans.append(plan)
            if plans:
                core.apply(executor.step(plans.pop(0)), 0.0)
            held += core.snapshot().pool.held
            unshared += sum(-(-stored // CAPACITY.block_size) for stored in executor.stored.values())
    return 1 - held / unshared


def drawn(means: tuple[int, int], count: int) -> Lengths:
    """Lengths with these means, spread like a log-normal of sigma 0.8."""
    chance = random.Random(0)
    return [(_length(chance, means[0]), _length(chance, means[1])) for _ in range(count)]


def _length(chance: random.Random, mean: int) -> int:
    return min(1800, max(2, round(mean * chance.lognormvariate(-0.32, 0.8))))


def read(path: Path, count: int) -> Lengths:
    """The first `count` rows of a CSV that are numbers."""
    with path.open(encoding="utf-8") as file:
        rows = [row[:2] for row in csv.reader(file) if len(row) > 1 and row[0].isdigit() and row[1].isdigit()]
    return [(min(1800, max(2, int(prompt))), min(1800, max(1, int(output)))) for prompt, output in rows[:count]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=Path, help="CSV of prompt and answer lengths (default: drawn)")
    parser.add_argument("--requests", type=int, default=50, help="prompts (default %(default)s)")
    options = parser.parse_args()
    loads = {name: drawn(means, options.requests) for name, means in MEANS.items()}
    if options.lengths is not None:
        loads = {options.lengths.name: read(options.lengths, options.requests)}
    for name, lengths in loads.items():
        for kind in ("samples", "beams"):
            shares = {count: round(100 * saved(lengths, count, beams=kind == "beams"), 1) for count in WIDTHS}
            print(json.dumps({"lengths": name, "kind": kind, "blocks saved, percent": shares}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
