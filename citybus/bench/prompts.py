"""Prompts of given lengths: random token ids, so that any model can be asked."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from citybus.bench.workload import Call


def prompts(calls: Sequence[Call], vocab_size: int, seed: int) -> list[array[int]]:
    """The token ids of each call's prompt; equal prefix names give equal tokens, and the rest is each call's own."""
    blocks: dict[tuple[int, int], array[int]] = {}
    return [_prompt(index, call, vocab_size, seed, blocks) for index, call in enumerate(calls)]


def _prompt(
    index: int, call: Call, vocab_size: int, seed: int, blocks: dict[tuple[int, int], array[int]]
) -> array[int]:
    tokens = array("I")
    for name in call.prefix:
        if len(tokens) >= call.num_prompt:
            break
        key = (name, call.prefix_block)
        if key not in blocks:
            blocks[key] = _random_tokens(f"prefix {name} {seed}", call.prefix_block, vocab_size)
        tokens.extend(blocks[key])
    missing = call.num_prompt - len(tokens)
    if missing > 0:
        tokens.extend(_random_tokens(f"prompt {index} {seed}", missing, vocab_size))
    return tokens[: call.num_prompt]


def _random_tokens(seed: str, count: int, vocab_size: int) -> array[int]:
    return array("I", random.Random(seed).choices(range(vocab_size), k=count))
