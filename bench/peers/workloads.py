"""The three workloads on which servers are compared, and what is measured on each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.peers.peer import Server
from citybus.bench.prompts import prompts
from citybus.bench.workload import Lengths, drawn

SINGLE_PROMPTS = 3
SINGLE_TOKENS = 129


@dataclass(frozen=True, slots=True)
class Workload:
    """`measure` gives one figure of a server in `unit`; `more_is_better` says which way it counts."""

    name: str
    unit: str
    more_is_better: bool
    measure: Callable[[Server], float]


def at_once(name: str, requests: int, prompt: Lengths, output: Lengths, vocab_size: int, seed: int) -> Workload:
    """Output tokens per second where all requests come at once: more than the seats make it a sustained load."""
    calls = drawn(requests, prompt, output, seed)
    asked, counts = prompts(calls, vocab_size, seed), [call.num_output for call in calls]
    return Workload(name, "output tokens/s", True, lambda server: server.answer(asked, counts).tokens_per_s)


def single(prompt_tokens: int, vocab_size: int, seed: int) -> Workload:
    """The time between two tokens of a request that is alone: that of a long answer without that of its first token."""
    calls = drawn(SINGLE_PROMPTS, Lengths(prompt_tokens, prompt_tokens), Lengths(1, 1), seed)
    asked = prompts(calls, vocab_size, seed)
    return Workload("single stream", "ms between tokens", False, lambda server: _inter_token_ms(server, asked))


def _inter_token_ms(server: Server, asked: Sequence[Sequence[int]]) -> float:
    gaps = []
    for prompt in asked:
        first = server.answer([prompt], [1]).seconds
        whole = server.answer([prompt], [SINGLE_TOKENS]).seconds
        gaps.append(1000 * (whole - first) / (SINGLE_TOKENS - 1))
    return statistics.median(gaps)
