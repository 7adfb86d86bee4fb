"""F27: four prompts that could each hold a part of the pool for ever. Under every policy, all of them end, with REF."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from scheduler_svc.policies import BUILT_IN
from tests.fakes import INFO
from tests.scheduler.core.driver import Driver, request

TIGHT = replace(INFO, num_blocks=16, block_size=16, max_step_tokens=16)
"""A pool of 16 blocks, and 12 of them for each prompt."""
LENGTH = 12 * 16 - 5


def check_progress(driver: Driver) -> None:
    """Every step computes something, until all is done; `Driver.drain` then compares with REF."""
    while driver.live:
        made = []
        while (plan := driver.schedule()) is not None:
            made.append(plan)
        assert made or driver.plans, "work waits, and nothing is planned"
        driver.deliver()
    driver.drain()


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
@pytest.mark.parametrize("window", [1, 2])
def test_prompts_that_fill_the_pool_one_by_one(policy: str, window: int) -> None:
    driver = Driver(TIGHT, BUILT_IN[policy](), window)
    for key in range(4):
        driver.add(request(key, [key] * LENGTH, max_tokens=40, priority=key % 2, tenant=f"t{key % 3}"))
    check_progress(driver)


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
@pytest.mark.parametrize("cancelled", range(4))
def test_a_cancel_anywhere(policy: str, cancelled: int) -> None:
    for at in (0, 5, 20):
        driver = Driver(TIGHT, BUILT_IN[policy](), 2)
        for key in range(4):
            driver.add(request(key, [key] * LENGTH, max_tokens=9, priority=-key))
        for _ in range(at):
            driver.step()
        driver.cancel(cancelled)
        check_progress(driver)


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_a_head_that_is_cached(policy: str) -> None:
    for order in itertools.permutations(range(3)):
        driver = Driver(TIGHT, BUILT_IN[policy](), 2)
        driver.add(request(0, [0] * LENGTH, max_tokens=2))
        driver.drain()
        for key, content in enumerate(order, 1):
            driver.add(request(key, [content] * LENGTH, max_tokens=9))
        check_progress(driver)
