"""What a grammar costs a step: decodes with and without one, with the engine alone.

python -m bench.structured_steps MODEL_FOLDER [--sequences 8] [--steps 48] [--threads 2] [--rounds 5]

Every sequence writes a JSON array of texts, or whatever it wants. Prints the median milliseconds of a step of each
kind, in turned rounds on one engine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import count
from pathlib import Path

from prometheus_client import CollectorRegistry

from common.grammar import Grammar, GrammarKind
from common.metrics import ExecutorMetrics
from common.step import NewSequence, Sampling, ScheduledSequence, StepPlan
from executor_svc.config import Config
from executor_svc.engine import Engine
from executor_svc.startup import load_engine

BLOCKS_EACH = 16
PROMPT = tuple(range(100, 116))
TEXTS = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"array","items":{"type":"string"},"minItems":1000}', (0,))


def decode(engine: Engine, term: int, steps: count[int], grammar: Grammar | None, sequences: int, length: int) -> float:
    """The median milliseconds of a step that draws a token for each sequence."""
    size = engine.describe().block_size
    took = []
    for step in range(length):
        if step == 0:
            blocks = [tuple(range(BLOCKS_EACH * one, BLOCKS_EACH * one + 1)) for one in range(sequences)]
            rows = tuple(
                NewSequence(one, PROMPT, 16, 0, 16, blocks[one], Sampling(seed=one, grammar=grammar))
                for one in range(sequences)
            )
            engine.step(StepPlan(term, next(steps), rows))
            continue
        position = len(PROMPT) + step - 1
        grown = {
            one: (BLOCKS_EACH * one + position // size,) if position % size == 0 else () for one in range(sequences)
        }
        known = tuple(ScheduledSequence(one, 1, grown[one]) for one in range(sequences))
        started = time.perf_counter()
        result = engine.step(StepPlan(term, next(steps), (), known))
        took.append(1e3 * (time.perf_counter() - started))
        assert result.error is None and not result.failed, result
    engine.step(StepPlan(term, next(steps), finished_ids=tuple(range(sequences))))
    return statistics.median(took)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    for name, default in (("sequences", 8), ("steps", 48), ("threads", 2), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    settings = Config(model=args.model, num_threads=args.threads, num_blocks=BLOCKS_EACH * args.sequences)
    engine = load_engine(settings, ExecutorMetrics(CollectorRegistry()))
    term, steps = engine.open(engine.describe().epoch, False), count(1)
    found: dict[str, list[float]] = {"free": [], "json": []}
    for _ in range(args.rounds):
        for name, grammar in (("free", None), ("json", TEXTS)):
            found[name].append(decode(engine, term, steps, grammar, args.sequences, args.steps))
    report = {name: round(statistics.median(values), 2) for name, values in found.items()}
    print(json.dumps({"sequences": args.sequences, "step_ms": report}))


if __name__ == "__main__":
    main()
