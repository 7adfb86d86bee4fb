"""The ten invariants under thousands of random operations, and REF for whoever gets to the end.

`pytest tests/scheduler/core/test_properties.py --hypothesis-profile=deep` looks twenty times as far.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from common.step import ExecutorInfo, Sampling
from scheduler_svc.core.beams import BeamParams, EarlyStopping
from scheduler_svc.core.guard import GuardedPolicy, PolicyChange
from scheduler_svc.policies import BUILT_IN
from tests.fakes import INFO
from tests.scheduler.core.driver import Driver, request, samples, search

VOCAB = 5
STEMS = tuple(tuple(random.Random(stem).choices(range(VOCAB), k=64)) for stem in range(3))
SALTS = (None, None, None, "", "a")


def capacity(block_size: int, num_blocks: int, max_step_tokens: int, max_sequences: int, max_len: int) -> ExecutorInfo:
    """Facts of a small executor."""
    return replace(
        INFO,
        vocab_size=VOCAB,
        block_size=block_size,
        num_blocks=num_blocks,
        max_step_tokens=max_step_tokens,
        max_sequences=max_sequences,
        max_model_len=max_len,
    )


capacities = st.builds(
    capacity,
    block_size=st.sampled_from([1, 2, 3, 16]),
    num_blocks=st.integers(4, 40),
    max_step_tokens=st.integers(1, 100),
    max_sequences=st.integers(1, 8),
    max_len=st.integers(2, 90),
)
prompts = st.builds(
    lambda stem, shared, own: STEMS[stem][:shared] + tuple(own),
    stem=st.integers(0, 2),
    shared=st.integers(0, 64),
    own=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
)
guesses = st.sampled_from([0, 0, 1, 5])
samplings = st.one_of(st.just(Sampling(temperature=0.0)), st.builds(Sampling, seed=st.integers(0, 3)))


class SchedulerMachine(RuleBasedStateMachine):
    """Random events in any order; `teardown` runs everybody to the end."""

    @initialize(info=capacities, policy=st.sampled_from(sorted(BUILT_IN)), window=st.integers(1, 3), guesses=guesses)
    def start(self, info: ExecutorInfo, policy: str, window: int, guesses: int) -> None:
        self.changes: list[PolicyChange] = []
        guarded = GuardedPolicy(BUILT_IN[policy](), on_change=self.changes.append)
        self.driver = Driver(info, guarded, window, speculative_tokens=guesses)
        self.next_id = 1

    @rule(
        prompt=prompts,
        sampling=samplings,
        max_tokens=st.none() | st.integers(1, 40),
        stop=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
        priority=st.integers(-3, 3),
        limit=st.none() | st.floats(0.5, 20),
        salt=st.sampled_from(SALTS),
        num_samples=st.sampled_from([1, 1, 1, 2, 5]),
    )
    def add(
        self,
        prompt: tuple[int, ...],
        sampling: Sampling,
        max_tokens: int | None,
        stop: frozenset[int],
        priority: int,
        limit: float | None,
        salt: str | None,
        num_samples: int,
    ) -> None:
        driver = self.driver
        first = request(
            self.next_id,
            prompt,
            sampling=sampling,
            arrival=driver.now,
            stop_token_ids=stop,
            max_tokens=max_tokens,
            priority=priority,
            deadline=None if limit is None else driver.now + limit,
            cache_salt=salt,
        )
        for new in samples(first, num_samples):
            driver.add(new)
            self.next_id += 1

    @rule(
        prompt=prompts,
        width=st.integers(2, 3),
        max_tokens=st.integers(1, 20),
        stop=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
        early_stopping=st.sampled_from(EarlyStopping),
        salt=st.sampled_from(SALTS),
    )
    def add_search(
        self,
        prompt: tuple[int, ...],
        width: int,
        max_tokens: int,
        stop: frozenset[int],
        early_stopping: EarlyStopping,
        salt: str | None,
    ) -> None:
        params = BeamParams(width, 2, 1.0, early_stopping)
        options: dict[str, Any] = {"max_tokens": max_tokens, "stop_token_ids": stop, "cache_salt": salt}
        self.driver.add(search(self.next_id, prompt, params, arrival=self.driver.now, **options))
        self.next_id += width

    @rule(policy=st.sampled_from(sorted(BUILT_IN)))
    def swap(self, policy: str) -> None:
        self.driver.scheduler.policy.set(BUILT_IN[policy]())

    @rule()
    def schedule(self) -> None:
        self.driver.schedule()

    @rule()
    def deliver(self) -> None:
        self.driver.deliver()

    @rule(steps=st.integers(1, 20))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.driver.step()

    @rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        """Any of the last: live, ended, or never seen."""
        self.driver.cancel(max(self.next_id - which, 0))

    @rule(which=st.integers(0, 30), keep=st.integers(0, 40))
    def stop(self, which: int, keep: int) -> None:
        live = [key for key in self.driver.live if self.driver.requests[key].beams is None]
        if live:
            sequence_id = live[which % len(live)]
            self.driver.stop(sequence_id, min(keep, len(self.driver.tokens[sequence_id])))

    @rule(seconds=st.floats(0, 10))
    def sleep(self, seconds: float) -> None:
        self.driver.sleep(seconds)

    @rule(kind=st.sampled_from(["step fails", "session breaks", "restart", "smaller", "larger"]))
    def trouble(self, kind: str) -> None:
        match kind:
            case "step fails":
                self.driver.fail_next()
            case "session breaks":
                self.driver.reconnect()
            case "restart":
                self.driver.restart()
            case "smaller":
                self.driver.restart(num_blocks=max(1, self.driver.executor.info.num_blocks - 3))
            case "larger":
                self.driver.restart(num_blocks=self.driver.executor.info.num_blocks + 2)

    @rule(executed=st.integers(0, 3), unheard=st.sampled_from([0, 0, 1, 2, 50]))
    def hand_over(self, executed: int, unheard: int) -> None:
        self.driver.hand_over(executed, unheard)

    @rule(executed=st.integers(0, 3))
    def cut(self, executed: int) -> None:
        self.driver.cut(executed)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.drain()
            assert [change for change in self.changes if change.fault] == [], "a policy of ours was rolled back"


TestScheduler = SchedulerMachine.TestCase


@given(
    info=capacities,
    policy=st.sampled_from(sorted(BUILT_IN)),
    window=st.integers(1, 3),
    guesses=guesses,
    seed=st.integers(),
)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_long_runs(info: ExecutorInfo, policy: str, window: int, guesses: int, seed: int) -> None:
    """Hundreds of operations on one scheduler: what the short runs above do not reach."""
    chance = random.Random(seed)
    driver = Driver(info, BUILT_IN[policy](), window, speculative_tokens=guesses)
    for _ in range(150):
        for _ in range(chance.choice([0, 0, 0, 1, 1, 3])):
            add_random(driver, chance)
        if chance.random() < 0.1 and driver.live:
            driver.cancel(chance.choice(driver.live))
        driver.sleep(chance.random())
        match chance.randrange(50):
            case 0:
                driver.restart()
            case 1 | 2 | 3:
                driver.hand_over(chance.randint(0, window), chance.choice([0, 0, 1, 5]), policy=BUILT_IN[policy]())
            case 4:
                driver.cut(chance.randint(0, window))
        for _ in range(chance.randint(0, 2)):
            driver.schedule()
        for _ in range(chance.randint(0, 2)):
            driver.deliver()
    driver.drain()


@pytest.mark.parametrize(("window", "guesses"), [(1, 0), (2, 0), (1, 2)])
def test_the_random_load_reaches_every_corner(window: int, guesses: int) -> None:
    """Otherwise the tests above would prove little."""
    chance = random.Random(7)
    driver = Driver(capacity(3, 24, 10, 4, 60), window=window, speculative_tokens=guesses)
    seen: Counter[str] = Counter()
    for _ in range(400):
        if len(driver.live) < 8:
            add_random(driver, chance)
        driver.sleep(0.3)
        while (plan := driver.schedule()) is not None:
            seen["preempted"] += len(plan.preempted_ids)
            seen["copied"] += len(plan.copies)
            seen["sealed"] += len(plan.sealed)
            seen["shared"] += sum(row.num_computed_tokens >= 3 for row in plan.new_sequences)
            seen["resumed"] += sum(len(row.token_ids) > row.num_prompt_tokens for row in plan.new_sequences)
            seen["chunks"] += sum(row.num_tokens > 1 for row in plan.scheduled)
            seen["mixed"] += bool(plan.new_sequences and plan.scheduled)
            seen["forked"] += len(plan.forks)
            seen["parted"] += bool(plan.forks and plan.copies)
            seen["siblings"] += sum(row.sequence_id % 10 > 0 for row in plan.new_sequences)
            seen["drafted"] += plan.num_draft_tokens
        driver.deliver()
    totals = driver.scheduler.totals
    assert seen["drafted"] == totals.draft_tokens
    assert (seen["drafted"] > 0) == (0 < totals.accepted_draft_tokens < totals.draft_tokens) == (guesses > 0)
    driver.drain()
    seen |= Counter(outcome.reason.value for outcome in driver.outcomes.values())
    expected = {
        "preempted",
        "copied",
        "sealed",
        "shared",
        "resumed",
        "chunks",
        "mixed",
        "siblings",
        "forked",
        "parted",
        "stop",
        "length",
        "deadline",
    }
    assert {what for what in expected if seen[what] >= 5} == expected, seen


def add_random(driver: Driver, chance: random.Random) -> None:
    """A request with a shared beginning, and perhaps everything else a request can have: up to three samples, too."""
    prompt = [*chance.choice(STEMS)[: chance.randint(0, 64)], chance.randrange(VOCAB)]
    if chance.random() < 0.1:
        params, key = BeamParams(chance.choice([2, 3]), chance.choice([1, 2])), 10 * len(driver.requests) + 1_000
        driver.add(search(key, prompt, params, arrival=driver.now, max_tokens=chance.choice([1, 5, 17])))
        return
    first = request(
        10 * len(driver.requests) + 1_000,
        prompt,
        sampling=Sampling(temperature=chance.choice([0.0, 1.0]), seed=chance.randrange(3)),
        arrival=driver.now,
        stop_token_ids=frozenset(chance.sample(range(VOCAB), chance.choice([0, 0, 1]))),
        max_tokens=chance.choice([None, 1, 2, 15, 16, 17, 33]),
        priority=chance.randint(-3, 3),
        deadline=chance.choice([None, None, None, driver.now + 30 * chance.random()]),
        cache_salt=chance.choice(SALTS),
    )
    for new in samples(first, chance.choice([1, 1, 1, 3])):
        driver.add(new)
