"""What of a prompt is found instead of computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.step import BlockCopy
from tests.fakes import INFO
from tests.scheduler.core.driver import SMALL, Driver, request, table


@pytest.mark.parametrize("length", range(1, 3 * 16 + 2))
def test_F21_a_repeated_prompt_computes_one_token_and_answers_the_same(length: int) -> None:
    driver = Driver(replace(INFO, num_blocks=40))
    prompt = [3 * token % 101 for token in range(length)]
    for key in range(10):
        driver.add(request(key, prompt, max_tokens=18))
        driver.drain()
    assert driver.outcomes[0].num_cached_tokens == 0
    assert {driver.outcomes[key].num_cached_tokens for key in range(1, 10)} == {length - 1}
    driver.add(request(20, [*prompt, 100], max_tokens=18))
    driver.add(request(21, [*prompt[:-1], 100], max_tokens=18))
    driver.drain()
    assert driver.outcomes[20].num_cached_tokens == length
    assert driver.outcomes[21].num_cached_tokens == length - 1


def test_a_partly_filled_block_is_copied_and_continued_in_the_copy() -> None:
    driver = Driver(SMALL, window=1)
    driver.add(request(1, [1, 2, 3, 4, 5, 6], max_tokens=1))
    driver.drain()
    driver.add(request(2, [1, 2, 3, 4, 5, 7, 8], max_tokens=1))
    plan = driver.schedule()
    assert plan is not None
    assert plan.copies == (BlockCopy(1, 2),)
    assert (table(plan), plan.new_sequences[0].num_computed_tokens) == ((0, 2), 5)
    driver.drain()


def test_the_block_of_a_running_sequence_is_copied_while_it_goes_on() -> None:
    driver = Driver(SMALL, window=1)
    driver.add(request(1, [1, 2, 3, 4, 5, 6], max_tokens=9))
    driver.step()
    driver.add(request(2, [1, 2, 3, 4, 5, 6, 9], max_tokens=9))
    plan = driver.schedule()
    assert plan is not None
    assert plan.copies == (), "what a sequence is still writing is not offered before it is full or given back"
    assert (table(plan), plan.new_sequences[0].num_computed_tokens) == ((0, 2), 4)
    driver.drain()


@pytest.mark.parametrize(("left", "right"), [(None, ""), (None, "a"), ("", "a"), ("a", "b")])
def test_F19_another_salt_finds_nothing_and_its_own_does(left: str | None, right: str | None) -> None:
    driver = Driver(SMALL)
    for key, salt in enumerate((left, right, left, right)):
        driver.add(request(key, range(10), max_tokens=1, cache_salt=salt))
        driver.drain()
    assert [driver.outcomes[key].num_cached_tokens for key in range(4)] == [0, 0, 9, 9]


def test_two_that_board_together_share_what_the_first_of_them_computes() -> None:
    driver = Driver(SMALL, window=1)
    driver.add(request(1, range(9), max_tokens=1))
    driver.add(request(2, range(10), max_tokens=1))
    plan = driver.schedule()
    assert plan is not None
    assert [row.block_ids for row in plan.new_sequences] == [(0, 1, 2), (0, 1, 3)]
    assert [row.num_computed_tokens for row in plan.new_sequences] == [0, 8]
    driver.drain()
