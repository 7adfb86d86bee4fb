"""How long does drawing the tokens of a step take on a CPU, native against torch?

Run: GOMP_SPINCOUNT=0 python -m bench.cpu_sampling
Both draw from the same logits in turns: random ones, a few tokens of each row far likelier than the rest, as language
models have them.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch

from bench.cpu_forward import native_library, timed
from executor_svc.host import available_cores
from kernels.sample_tokens import Draws, sample_tokens

SETTINGS = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "temperature 0.8": (0.8, 0, 1.0, 0.0),
    "temperature 0.8, top_k 40": (0.8, 40, 1.0, 0.0),
    "temperature 0.8, top_p 0.9": (0.8, 0, 0.9, 0.0),
    "temperature 0.8, top_k 40, top_p 0.9": (0.8, 40, 0.9, 0.0),
    "temperature 0.8, min_p 0.05": (0.8, 0, 1.0, 0.05),
}
"""Temperature, top_k, top_p, min_p."""


def random_logits(rows: int, vocab_size: int) -> torch.Tensor:
    logits = 2 * torch.randn(rows, vocab_size)
    likely = torch.randint(vocab_size, (rows, 50))
    return logits.scatter_add(1, likely, 12 * torch.rand(rows, 50))


def build_draws(rows: int, temperature: float, top_k: int, top_p: float, min_p: float) -> Draws:
    def numbers(value: float) -> torch.Tensor:
        return torch.full((rows,), value, dtype=torch.float64)

    every = torch.arange(rows)
    return Draws(numbers(temperature), torch.full((rows,), top_k), numbers(top_p), numbers(min_p), every, every)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="rows of a step (default %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=49_152, help="logits of a row (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed draws of each (default %(default)s)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="default: one a core (%(default)s)")
    options = parser.parse_args()
    library = native_library()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    native = library.threads(library.instruction_sets()[-1], options.threads).sample_tokens
    logits = random_logits(options.rows, options.vocab_size)
    print(f"{options.rows} rows of {options.vocab_size}, {options.threads} threads")
    print(f"{'draw':<38}{'torch ms':>10}{'native ms':>11}{'ratio':>7}{'different':>11}")
    for name, settings in SETTINGS.items():
        draws = build_draws(options.rows, *settings)
        different = int((sample_tokens(logits, draws) != native(logits, draws)).sum())
        pairs = [[timed(partial(way, logits, draws)) for way in (sample_tokens, native)] for _ in range(options.rounds)]
        slow, fast = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"{name:<38}{slow:>10.2f}{fast:>11.2f}{slow / fast:>7.1f}{different:>11}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
