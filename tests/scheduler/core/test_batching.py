"""Seats, budget and preemption."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_svc.core.request import FinishReason
from tests.fakes import INFO
from tests.scheduler.core.driver import SMALL, Driver, plans, request


@pytest.mark.parametrize("window", [1, 2])
def test_a_seat_is_taken_at_the_next_step_where_the_end_was_foreseen(window: int) -> None:
    driver = Driver(replace(SMALL, max_sequences=1), window=window)
    for key in range(1, 4):
        driver.add(request(key, [key] * 3, max_tokens=2))
    boarded = [plan.step for plan in plans(driver) if plan.new_sequences]
    assert boarded == [1, 3, 5]


@pytest.mark.parametrize(("window", "late"), [(1, 0), (2, 1)])
def test_a_seat_is_taken_one_step_later_at_most_where_a_stop_token_was_drawn(window: int, late: int) -> None:
    driver = Driver(
        replace(SMALL, max_sequences=1), window=window, script=lambda tokens, index: 99 if index == 2 else 5
    )
    for key in range(1, 4):
        driver.add(request(key, [key] * 3, stop_token_ids=frozenset({99})))
    made = plans(driver)
    assert [plan.step for plan in made if plan.new_sequences] == [1, 4 + late, 7 + 2 * late]
    assert sum(plan.num_tokens for plan in made) == 3 * (5 + late), "with two plans in flight one token is wasted"
    assert all(driver.tokens[key] == [5, 5, 99] for key in range(1, 4))


def test_decodes_come_first_and_the_rest_of_the_budget_prefills() -> None:
    driver = Driver(replace(SMALL, max_step_tokens=6, num_blocks=20), window=1)
    driver.add(request(1, [1, 2], max_tokens=8))
    driver.add(request(2, [3, 4], max_tokens=8))
    driver.step()
    driver.add(request(3, range(20, 31), max_tokens=1))
    chunks = []
    for _ in range(3):
        plan = driver.schedule()
        assert plan is not None
        assert {row.sequence_id: row.num_tokens for row in plan.scheduled if row.sequence_id < 3} == {1: 1, 2: 1}
        chunks += [row.num_tokens for row in plan.new_sequences]
        chunks += [row.num_tokens for row in plan.scheduled if row.sequence_id == 3]
        driver.deliver()
    assert chunks == [4, 4, 3]
    driver.drain()


@pytest.mark.parametrize("budget", [1, 15, 16, 17, 40, 41])
def test_chunks_of_any_size_give_the_same_answer(budget: int) -> None:
    driver = Driver(replace(INFO, max_step_tokens=budget))
    driver.add(request(1, [token % 7 for token in range(40)], max_tokens=10))
    driver.add(request(2, [token % 5 for token in range(33)], max_tokens=10))
    driver.drain()


def test_F23_the_youngest_gives_up_its_blocks_and_keeps_its_place() -> None:
    driver = Driver(replace(SMALL, num_blocks=4), window=1)
    driver.add(request(1, [1] * 4, max_tokens=9))
    driver.add(request(2, [2] * 4, max_tokens=9))
    for _ in range(5):
        driver.step()
    driver.add(request(3, [3], max_tokens=1))
    plan = driver.schedule()
    assert plan is not None
    assert plan.preempted_ids == (2,)
    assert [(row.sequence_id, row.new_block_ids) for row in plan.scheduled] == [(1, (3,))], "the end of its prefix"
    assert not plan.new_sequences, "nobody overtakes who was preempted"
    later = plans(driver)
    first = next(plan for plan in later if plan.new_sequences)
    back = first.new_sequences[0]
    assert back.sequence_id == 2
    assert (back.num_prompt_tokens, len(back.token_ids), back.num_computed_tokens) == (4, 9, 4), "what was left is used"
    assert driver.outcomes[2].num_preemptions == 1
    assert driver.scheduler.totals.generated_tokens == 9 + 9 + 1, "no token is counted twice"


def test_who_boards_leaves_the_others_the_blocks_they_need_next() -> None:
    """Two blocks are free and two would do for now: but one is left to whoever runs, so that nobody is preempted."""
    driver = Driver(replace(SMALL, num_blocks=4), window=1)
    driver.add(request(1, [1] * 6, max_tokens=8))
    driver.step()
    driver.add(request(2, [2] * 8, max_tokens=6))
    made = plans(driver)
    assert not any(plan.preempted_ids for plan in made)
    assert [plan.step for plan in made if plan.new_sequences] == [9], "at the next step after the first one's last"


def test_F27_four_that_could_each_take_a_part_of_the_pool_all_finish() -> None:
    driver = Driver(replace(INFO, num_blocks=16, max_step_tokens=16))
    for key in range(4):
        driver.add(request(key, [key] * 12 * 16, max_tokens=20))
    driver.drain()


@pytest.mark.parametrize("window", [1, 2])
def test_F16_only_what_can_never_fit_is_refused(window: int) -> None:
    driver = Driver(replace(INFO, num_blocks=8, block_size=16, max_model_len=1024), window=window)
    assert not driver.add(request(1, [1] * 200))
    assert not driver.add(request(2, [1] * 128))
    assert driver.add(request(3, [1] * 127))
    assert driver.add(request(4, [2] * 100, max_tokens=500))
    for key in range(5, 10):
        assert driver.add(request(key, [key] * 10, max_tokens=5))
    driver.drain()
    assert [len(driver.tokens[key]) for key in (3, 4)] == [1, 28]
    assert {driver.outcomes[key].reason for key in range(3, 10)} == {FinishReason.LENGTH}


def test_F15_the_context_is_used_to_its_last_token() -> None:
    driver = Driver(replace(INFO, max_model_len=64))
    assert not driver.add(request(1, [1] * 64))
    assert not driver.add(request(2, [1] * 640))
    for key, (length, max_tokens) in enumerate(((63, None), (63, 1), (63, 1000), (60, None), (60, 3)), start=3):
        assert driver.add(request(key, [1] * length, max_tokens=max_tokens))
    driver.drain()
    assert [len(driver.tokens[key]) for key in range(3, 8)] == [1, 1, 1, 4, 3]


@pytest.mark.parametrize("window", [1, 2])
def test_the_pool_is_used_well_and_no_sequence_wastes_a_block(window: int) -> None:
    """The audit of every plan holds the second half; this is the share of slots in held blocks that store a token."""
    driver = Driver(
        replace(INFO, num_blocks=600, max_model_len=2000, max_step_tokens=512, max_sequences=32), window=window
    )
    for key in range(96):
        length = 50 + 37 * key % 700
        driver.add(request(key, [(key + token) % 101 for token in range(length)], max_tokens=20 + 53 * key % 300))
    stored = slots = 0
    while driver.step():
        snapshot = driver.scheduler.snapshot()
        stored += snapshot.tokens_held
        slots += snapshot.pool.held * 16
    assert stored / slots >= 0.95
    driver.drain()
