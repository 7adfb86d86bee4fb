"""F30: short prompts do not wait for the end of a long prefill, nor the long one for the end of all short ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from scheduler_svc.core.policy import Policy
from scheduler_svc.policies import BUILT_IN
from scheduler_svc.policies.shortest_first import ShortestFirst
from tests.fakes import INFO
from tests.scheduler.core.driver import Driver, request

CHUNK = 64
LONG, SHORT = 4000, 10
ROOMY = replace(INFO, max_model_len=5000, num_blocks=600, max_step_tokens=CHUNK)
STEP_S = 0.02


class Watched:
    """A driver that notes in which step each sequence got each token."""

    def __init__(self, policy: Policy) -> None:
        self.driver = Driver(ROOMY, policy)
        self.steps = 0
        self.times: dict[int, list[int]] = {}

    def step(self) -> None:
        before = {key: len(tokens) for key, tokens in self.driver.tokens.items()}
        self.driver.step()
        self.driver.now += STEP_S
        self.steps += 1
        for key, count in before.items():
            self.times.setdefault(key, []).extend([self.steps] * (len(self.driver.tokens[key]) - count))

    def add(self, key: int, length: int, max_tokens: int) -> None:
        prompt = [key % 101, key // 101, *([7] * length)][:length]
        self.driver.add(request(key, prompt, max_tokens=max_tokens, arrival=self.driver.now))


def long_then_short(policy: Policy) -> tuple[int, list[int], int]:
    """(step in which the long prefill ended, first tokens of the short ones, longest pause of a decode), in steps."""
    bus = Watched(policy)
    for key in range(4):
        bus.add(key, 5, 200)
    while not all(bus.times.get(key) for key in range(4)):
        bus.step()
    start = bus.steps
    bus.add(10, LONG, 3)
    bus.step()
    for key in range(20, 30):
        bus.add(key, SHORT, 3)
    while not bus.times.get(10):
        bus.step()
    pauses = [b - a for key in range(4) for a, b in zip(bus.times[key], bus.times[key][1:], strict=False)]
    firsts = [bus.times[key][0] - start if bus.times[key] else 10**6 for key in range(20, 30)]
    end = bus.times[10][0] - start
    bus.driver.drain()
    return end, firsts, max(pauses)


def test_short_prompts_start_within_a_quarter_of_a_long_prefill() -> None:
    end, firsts, pause = long_then_short(ShortestFirst())
    assert max(firsts) < 0.25 * end
    assert pause <= 3


def test_under_fcfs_they_wait_for_it() -> None:
    """Otherwise the test above would prove nothing."""
    end, firsts, pause = long_then_short(BUILT_IN["fcfs"]())
    assert max(firsts) > 0.9 * end
    assert pause <= 3


@pytest.mark.parametrize("length", [SHORT, 50, 200])
def test_an_endless_flow_of_short_prompts_does_not_stop_a_long_one(length: int) -> None:
    """More short work arrives than can be done; the long prompt goes on every few steps, and boards in bounded time."""
    bus = Watched(ShortestFirst(ShortestFirst.Parameters(ageing=1000.0)))
    bus.add(0, LONG, 1)
    computed: list[int] = []
    key = 1
    while not bus.times.get(0):
        while key * length < 1.25 * CHUNK * (bus.steps + 1):
            bus.add(key, length, 1)
            key += 1
        bus.step()
        sequence = bus.driver.scheduler._roster.get(0)
        computed.append(sequence.num_scheduled if sequence is not None else LONG)
        assert bus.steps < 1000, "the long prompt starves"
    started = next(index for index, count in enumerate(computed) if count)
    moved = [index for index in range(started, len(computed)) if computed[index] > computed[index - 1]]
    assert max(b - a for a, b in itertools.pairwise(moved)) <= 5, "it stood still"
    for waiting in list(bus.driver.live):
        bus.driver.cancel(waiting)
    bus.driver.drain()


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 40, 41])
@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_any_chunk_size_gives_ref(policy: str, chunk: int) -> None:
    driver = Driver(replace(INFO, max_step_tokens=chunk), BUILT_IN[policy]())
    for key in range(4):
        driver.add(request(key, range(key, key + 40), max_tokens=5))
    driver.drain()
