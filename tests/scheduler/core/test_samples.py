"""Samples of one prompt: its blocks are there once, the last one copied on write, and each sample is on its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.step import Sampling, StepPlan
from scheduler_svc.policies import BUILT_IN
from tests.fakes import INFO
from tests.scheduler.core.driver import Driver, request, samples

SAMPLED = Sampling(temperature=1.0, seed=7)
EDGES = (1, 2, 15, 16, 17, 31, 32, 33)


def prompt(length: int) -> list[int]:
    return [(7 * position) % 101 for position in range(length)]


def start(driver: Driver, length: int, count: int, **options: object) -> list[int]:
    """Queue `count` samples of a prompt; their ids."""
    first = request(1, prompt(length), **({"sampling": SAMPLED, "max_tokens": 20} | options))
    for one in samples(first, count):
        assert driver.add(one)
    return list(range(1, count + 1))


def new_rows(plan: StepPlan | None) -> dict[int, tuple[int, int]]:
    """Sequence -> (tokens it found, tokens it computes)."""
    assert plan is not None
    return {row.sequence_id: (row.num_computed_tokens, row.num_tokens) for row in plan.new_sequences}


@pytest.mark.parametrize("length", EDGES)
def test_the_prompt_is_computed_once_and_each_sample_computes_its_last_token(length: int) -> None:
    driver = Driver()
    start(driver, length, 4)
    assert new_rows(driver.schedule()) == {1: (0, length)}
    assert new_rows(driver.schedule()) == dict.fromkeys((2, 3, 4), (length - 1, 1)), "one plan later, not one result"
    shared, own = (length - 1) // 16, 4 + (length % 16 == 0)  # the first one is a token ahead
    assert driver.scheduler.snapshot().pool.held == shared + own
    driver.drain()
    assert len({tuple(tokens) for tokens in driver.tokens.values()}) == 4, "each has its own generator"
    assert [driver.outcomes[key].num_cached_tokens for key in (1, 2, 3, 4)] == [0, *[length - 1] * 3]


def test_samples_wait_while_a_long_prompt_is_computed_and_others_pass_them() -> None:
    driver = Driver(replace(INFO, max_step_tokens=16))
    start(driver, 40, 3)
    driver.add(request(9, [5, 6, 7], max_tokens=5))
    plans = [driver.schedule(), driver.schedule()]
    assert [new_rows(plan) for plan in plans] == [{1: (0, 16)}, {}]
    boarded = {}
    while len(boarded) < 3:
        plan = driver.schedule()
        if plan is None:
            driver.deliver()
            continue
        boarded |= dict.fromkeys(new_rows(plan), plan.step)
    assert boarded[9] <= boarded[2] == boarded[3], boarded
    driver.drain()


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
@pytest.mark.parametrize("length", EDGES)
def test_a_small_pool_preempts_samples_one_by_one(length: int, policy: str) -> None:
    """Six blocks of 16 for four samples that grow to four each: `drain` holds every sample against REF."""
    driver = Driver(replace(INFO, num_blocks=6), BUILT_IN[policy]())
    start(driver, length, 4, max_tokens=30)
    driver.drain()
    assert [len(driver.tokens[key]) for key in (1, 2, 3, 4)] == [30] * 4


def test_who_is_preempted_does_not_disturb_the_others() -> None:
    driver = Driver(replace(INFO, num_blocks=6))
    start(driver, 16, 4, max_tokens=30)
    driver.drain()
    assert driver.outcomes[1].num_preemptions == 0
    assert sum(outcome.num_preemptions for outcome in driver.outcomes.values()) > 0


@pytest.mark.parametrize("cancelled", [1, 2])
def test_one_sample_ends_and_the_others_go_on(cancelled: int) -> None:
    """The one that computes the prompt may end before it is done: another one takes it up."""
    driver = Driver(replace(INFO, max_step_tokens=16))
    start(driver, 40, 3)
    driver.schedule()
    driver.cancel(cancelled)
    driver.drain()
    assert [len(driver.tokens[key]) for key in (1, 2, 3)] == [0 if key == cancelled else 20 for key in (1, 2, 3)]


@pytest.mark.parametrize("executed", [0, 1, 2])
def test_samples_survive_a_change_of_the_scheduler(executed: int) -> None:
    driver = Driver(replace(INFO, max_step_tokens=16))
    start(driver, 33, 3)
    for _ in range(4):
        driver.step()
        while driver.schedule() is not None:
            pass
        driver.hand_over(executed, unheard=1)
    driver.drain()
    assert [len(driver.tokens[key]) for key in (1, 2, 3)] == [20, 20, 20]
