"""What is asked for: the calls of a workload, drawn or given, and fitted to a model's context."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

PREFIX_BLOCK = 512
"""Tokens of a prefix block in a trace."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request: when it is sent, in seconds from the first, and how many tokens it brings and gets.

    `prefix` names the blocks of `prefix_block` tokens its prompt begins with: prompts share the tokens of the names
    they share.
    """

    at: float
    num_prompt: int
    num_output: int
    tenant: str = ""
    prefix: tuple[int, ...] = ()
    prefix_block: int = PREFIX_BLOCK

    @property
    def num_tokens(self) -> int:
        """Prompt and reply."""
        return self.num_prompt + self.num_output


@dataclass(frozen=True, slots=True)
class Lengths:
    """A range of lengths in tokens, both ends included; drawn uniformly."""

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError("expected a number of tokens, 1 or more, or a range such as 16-512")

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """From "N" or "A-B". Raises `ValueError`."""
        found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text)
        if found is None:
            raise ValueError(f"{text!r}: expected a number of tokens, or a range such as 16-512")
        return cls(int(found[1]), int(found[2] or found[1]))


def drawn(count: int, prompt: Lengths, output: Lengths, seed: int) -> list[Call]:
    """Calls of random lengths, all at time 0."""
    chance = random.Random(f"lengths {seed}")
    return [
        Call(0.0, chance.randint(prompt.least, prompt.most), chance.randint(output.least, output.most))
        for _ in range(count)
    ]


def with_shared_prefix(calls: Sequence[Call], num_tokens: int, groups: int) -> list[Call]:
    """The calls with `num_tokens` more in front of each prompt, the same for every `groups`-th call."""
    return [
        replace(call, num_prompt=call.num_prompt + num_tokens, prefix=(index % groups,), prefix_block=num_tokens)
        for index, call in enumerate(calls)
    ]


def sampled(calls: Sequence[Call], count: int, seed: int) -> list[Call]:
    """`count` of the calls at random, none twice before each was drawn once."""
    chance = random.Random(f"sample {seed}")
    chosen: list[Call] = []
    while len(chosen) < count:
        chosen += chance.sample(calls, min(len(calls), count - len(chosen)))
    return chosen


def fitted(calls: Sequence[Call], max_tokens: int) -> list[Call]:
    """The calls with all lengths scaled by one factor, so that the longest of them takes at most `max_tokens`.

    Every length stays 1 or more; calls that fit are left as they are.
    """
    longest = max(call.num_tokens for call in calls)
    factor = min(1.0, max_tokens / longest)
    if factor == 1.0:
        return list(calls)
    return [
        replace(
            call,
            num_prompt=max(1, int(call.num_prompt * factor)),
            num_output=max(1, int(call.num_output * factor)),
            prefix_block=max(1, int(call.prefix_block * factor)),
        )
        for call in calls
    ]
