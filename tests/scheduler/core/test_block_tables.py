"""Which blocks a sequence is given, when, and when they are given to another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.step import BlockCopy
from tests.fakes import INFO
from tests.scheduler.core.driver import SMALL, Driver, plans, request, table


def test_blocks_are_given_as_tokens_appear() -> None:
    driver = Driver(SMALL, window=1)
    driver.add(request(1, [1, 2, 3, 4, 5], max_tokens=5))
    first, *decodes, last = plans(driver)
    assert (table(first), first.new_sequences[0].num_tokens) == ((0, 1), 5)
    assert [row.new_block_ids for plan in decodes for row in plan.scheduled] == [(), (), (), (2,)]
    assert [[seal.block_id for seal in plan.sealed] for plan in [first, *decodes]] == [[0], [], [], [1], []]
    assert (last.finished_ids, last.num_tokens) == ((1,), 0)


@pytest.mark.parametrize("window", [1, 2])
def test_the_last_token_is_never_computed(window: int) -> None:
    driver = Driver(SMALL, window=window)
    driver.add(request(1, [1, 2, 3], max_tokens=6))
    assert sum(plan.num_tokens for plan in plans(driver)) == 3 + 6 - 1


def test_free_blocks_are_used_first_then_the_ends_of_the_oldest_prefixes() -> None:
    driver = Driver(replace(SMALL, num_blocks=6), window=1)
    for key, length in ((1, 9), (2, 8)):
        driver.add(request(key, range(10 * key, 10 * key + length), max_tokens=1))
        plans(driver)
    assert driver.scheduler.snapshot().pool.cached == 5
    driver.add(request(3, range(40, 60), max_tokens=1))
    assert table(plans(driver)[0]) == (5, 2, 1, 0, 4)
    driver.add(request(4, range(20, 28), max_tokens=1))
    first = plans(driver)[0].new_sequences[0]
    assert (first.num_computed_tokens, first.block_ids[0]) == (4, 3), "the beginning of the second prefix is left"


def test_a_block_that_duplicates_a_known_one_is_not_kept() -> None:
    """Two equal prompts side by side, with nothing to share when they board: the first to fill a block names it."""
    twins = Driver(SMALL, window=1)
    for key in (1, 2):
        twins.add(request(key, [1, 2], max_tokens=4))
    plans(twins)
    pool = twins.scheduler.snapshot().pool
    assert (pool.cached, pool.free) == (3, 5), "block [1, 2, a, b] is cached once, its two ends of one token twice"


def test_ten_users_hold_a_common_system_prompt_once() -> None:
    driver = Driver(replace(INFO, num_blocks=200, max_model_len=2000, max_step_tokens=4000), window=1)
    system = [token % 97 for token in range(1000)]
    for user in range(10):
        driver.add(request(user, [*system, 90 + user, 80 + user, 7], max_tokens=20))
    plan = driver.schedule()
    assert plan is not None
    shared = {row.block_ids[:62] for row in plan.new_sequences}
    assert len(shared) == 1, "62 full blocks of 16, the same for all"
    assert [row.num_tokens for row in plan.new_sequences] == [1003] + [1003 - 62 * 16] * 9
    assert all(row.num_tokens < 16 + 3 for row in plan.new_sequences[1:]), "less than one block more than their own"
    assert driver.scheduler.snapshot().pool.held == 62 + 10
    driver.drain()


def test_blocks_of_a_plan_in_flight_are_not_handed_out_before_its_result() -> None:
    driver = Driver(replace(SMALL, num_blocks=2), window=2)
    driver.add(request(1, [1] * 5))
    assert driver.schedule() is not None
    driver.cancel(1)
    driver.add(request(2, [2] * 5, max_tokens=1))
    leaving = driver.schedule()
    assert leaving is not None
    assert (leaving.finished_ids, leaving.num_tokens) == ((1,), 0)
    assert driver.scheduler.snapshot().pool.held == 2
    driver.deliver()
    boarding = driver.schedule()
    assert boarding is not None
    assert table(boarding) == (1, 0)
    driver.drain()


def test_the_source_of_a_copy_is_held_until_the_copy_is_made() -> None:
    driver = Driver(replace(SMALL, num_blocks=3), window=2)
    driver.add(request(1, [1, 2, 3], max_tokens=1))
    driver.drain()
    driver.add(request(2, [1, 2, 9, 9], max_tokens=9))
    plan = driver.schedule()
    assert plan is not None
    assert plan.copies == (BlockCopy(0, 1),)
    assert driver.scheduler.snapshot().pool.held == 2
    following = driver.schedule()
    assert following is not None
    assert following.scheduled[0].new_block_ids == (2,), "not block 0"
    driver.drain()
