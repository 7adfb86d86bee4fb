"""The ends of a sequence, wanted and unwanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.step import SampledToken, Sampling, StepResult
from scheduler_svc.core.request import FinishReason, WrongResult
from tests.fakes import INFO
from tests.scheduler.core.driver import SMALL, Driver, request


@pytest.mark.parametrize("steps", range(14))
def test_F17_a_cancel_in_any_phase_leaves_nothing_behind(steps: int) -> None:
    """160 tokens in chunks of 16: waiting, prefill, first token, decode, and after the end."""
    driver = Driver(replace(INFO, max_step_tokens=16))
    driver.add(request(1, [token % 50 for token in range(160)], max_tokens=2))
    for _ in range(steps):
        driver.step()
    driver.cancel(1)
    driver.cancel(1)
    driver.cancel(77)
    driver.add(request(2, [token % 50 for token in range(160)], max_tokens=2))
    driver.drain()
    assert driver.outcomes[1].reason is (FinishReason.LENGTH if steps > 10 else FinishReason.CANCELLED)


def test_a_deadline_ends_at_its_very_moment_and_not_before() -> None:
    driver = Driver(SMALL)
    driver.add(request(1, [1], deadline=2.0, max_tokens=30))
    driver.add(request(2, [1], deadline=1.0, max_tokens=30))
    driver.add(request(3, [1], max_tokens=3))
    assert driver.scheduler.next_deadline() == 1.0
    driver.step()
    driver.sleep(0.999)
    assert not driver.outcomes
    driver.sleep(1.0 - driver.now)
    assert driver.outcomes[2].reason is FinishReason.DEADLINE
    assert driver.scheduler.next_deadline() == 2.0
    driver.sleep(1.0)
    assert driver.scheduler.next_deadline() is None
    driver.drain()
    assert driver.outcomes[1].total_s == 2.0


def test_a_stop_in_the_text_keeps_only_the_tokens_that_belong_to_it() -> None:
    driver = Driver(SMALL)
    driver.add(request(1, [1, 2], max_tokens=20))
    for _ in range(8):
        driver.step()
    assert len(driver.tokens[1]) == 8
    driver.stop(1, keep=5)
    assert driver.outcomes[1].num_output_tokens == 5
    assert driver.scheduler.totals.generated_tokens == 5
    driver.drain()


@pytest.mark.parametrize("min_tokens", [0, 1, 2, 5])
def test_a_stop_token_ends_only_what_is_longer_than_min_tokens(min_tokens: int) -> None:
    """An executor would not draw it before; the scheduler's rule is the same."""
    driver = Driver(SMALL, script=lambda tokens, index: 9)
    sampling = Sampling(temperature=0.0, min_tokens=min_tokens, end_token_ids=(9,))
    driver.add(request(1, [1, 2], sampling=sampling, stop_token_ids=frozenset({9}), max_tokens=20))
    driver.drain()
    assert (driver.outcomes[1].reason, driver.outcomes[1].stop_token_id) == (FinishReason.STOP, 9)
    assert driver.tokens[1] == [9] * (min_tokens + 1)


def test_a_token_drawn_after_the_end_is_dropped() -> None:
    driver = Driver(SMALL, script=lambda tokens, index: 9)
    driver.add(request(1, [1, 2], stop_token_ids=frozenset({9})))
    driver.schedule()
    overrun = driver.schedule()
    assert overrun is not None
    assert overrun.num_tokens == 1
    driver.deliver()
    assert driver.outcomes[1].stop_token_id == 9
    result = driver.deliver()
    assert result is not None
    assert [token.sequence_id for token in result.sampled] == [1]
    driver.drain()
    assert driver.tokens[1] == [9]


def test_F33_a_failed_step_ends_its_own_sequences_and_no_other() -> None:
    driver = Driver(replace(SMALL, max_sequences=1), window=1)
    driver.add(request(1, [1, 2], max_tokens=4))
    driver.add(request(2, [3, 4], max_tokens=4))
    driver.step()
    driver.fail_next()
    driver.drain()
    assert (driver.outcomes[1].reason, driver.outcomes[1].error) == (FinishReason.ERROR, "out of memory")
    assert driver.outcomes[2].reason is FinishReason.LENGTH


def test_F33_a_restarted_executor_gets_everybody_whole_and_nothing_of_the_old_pool() -> None:
    driver = Driver(SMALL)
    driver.add(request(1, range(6), max_tokens=6))
    for _ in range(3):
        driver.step()
    driver.restart()
    plan = driver.schedule()
    assert plan is not None
    (row,) = plan.new_sequences
    assert (row.num_computed_tokens, row.token_ids[:6], row.block_ids) == (0, tuple(range(6)), (0, 1, 2))
    assert len(row.token_ids) == 9
    assert not plan.finished_ids
    driver.drain()
    assert driver.outcomes[1].num_cached_tokens == 0


def test_a_smaller_executor_ends_what_no_longer_fits() -> None:
    driver = Driver(SMALL)
    driver.add(request(1, range(20), max_tokens=6))
    driver.add(request(2, range(4), max_tokens=6))
    driver.step()
    driver.restart(num_blocks=3)
    assert driver.outcomes[1].reason is FinishReason.ERROR
    driver.drain()
    assert len(driver.tokens[2]) == 6


def test_a_result_that_belongs_to_no_plan_is_refused() -> None:
    driver = Driver(SMALL)
    with pytest.raises(WrongResult):
        driver.scheduler.apply(StepResult(1), 0.0)
    driver.add(request(1, [1]))
    plan = driver.schedule()
    assert plan is not None
    with pytest.raises(WrongResult):
        driver.scheduler.apply(StepResult(plan.step + 1), 0.0)


@pytest.mark.parametrize("sampled", [(), (SampledToken(2, 5),), (SampledToken(1, 5), SampledToken(2, 5))])
def test_a_result_with_other_sequences_is_refused(sampled: tuple[SampledToken, ...]) -> None:
    driver = Driver(SMALL)
    driver.add(request(1, [1]))
    plan = driver.schedule()
    assert plan is not None
    with pytest.raises(WrongResult):
        driver.scheduler.apply(StepResult(plan.step, sampled), 0.0)
