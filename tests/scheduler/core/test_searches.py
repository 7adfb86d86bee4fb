"""Beam searches in the core: shared blocks, copies where beams part, and the same answers whatever happens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler_svc.core.answers import sheddable
from scheduler_svc.core.beams import BeamParams, EarlyStopping
from scheduler_svc.core.policy import SequenceView
from scheduler_svc.core.request import FinishReason, NeverFits
from scheduler_svc.core.sequence import Status
from scheduler_svc.policies import BUILT_IN
from tests.fakes import INFO
from tests.scheduler.core.driver import Driver, request, search

EDGES = (1, 2, 15, 16, 17, 31, 32, 33)


def prompt(length: int) -> list[int]:
    return [(7 * position) % 101 for position in range(length)]


@pytest.mark.parametrize("width", [2, 4, 16])
@pytest.mark.parametrize("length", EDGES)
def test_answers_are_those_of_the_search_alone(length: int, width: int) -> None:
    """`drain` holds every answer against REF."""
    driver = Driver()
    driver.add(search(1, prompt(length), BeamParams(width, width), max_tokens=20, stop_token_ids=frozenset([3, 9])))
    driver.drain()
    assert driver.outcomes[1].score is not None
    assert len(driver.others[1]) == width - 1


@pytest.mark.parametrize("early_stopping", list(EarlyStopping))
def test_searches_and_others_share_steps_and_seats(early_stopping: EarlyStopping) -> None:
    """Window 2 for the others, 1 for the searches: these wait for each result."""
    driver = Driver(replace(INFO, max_sequences=9, max_step_tokens=24))
    for key in (10, 20, 30):
        params = BeamParams(4, 2, 1.0, early_stopping)
        driver.add(search(key, prompt(20 + key), params, max_tokens=12, stop_token_ids=frozenset([3])))
        driver.add(request(key + 5, prompt(key), max_tokens=30))
    driver.drain()


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
@pytest.mark.parametrize("num_blocks", [9, 12, 20])
def test_a_small_pool_preempts_searches_as_a_whole(num_blocks: int, policy: str) -> None:
    driver = Driver(replace(INFO, num_blocks=num_blocks, block_size=4), BUILT_IN[policy]())
    for key in (10, 20, 30):
        driver.add(search(key, prompt(5), BeamParams(3, 3), max_tokens=8))
        driver.add(request(key + 5, prompt(6), max_tokens=12))
    driver.drain()
    assert {driver.outcomes[key].reason for key in driver.requests} == {FinishReason.LENGTH}


def test_a_search_that_can_never_fit_says_what_would() -> None:
    driver = Driver(replace(INFO, num_blocks=9, block_size=4))
    words = (
        "the prompt has 17 tokens, and each of 8 beams holds 16 here, the answer included: make beam_search.width"
        " smaller, or shorten the prompt"
    )
    with pytest.raises(NeverFits, match=f"^{words}$"):
        driver.scheduler.add(search(1, prompt(17), BeamParams(8, 1), max_tokens=1))
    assert driver.add(search(1, prompt(17), BeamParams(5, 1), max_tokens=1))
    driver.drain()


def test_preemptions_of_searches_happen() -> None:
    driver = Driver(replace(INFO, num_blocks=14, block_size=4))
    for key in (10, 20, 30):
        driver.add(search(key, prompt(5), BeamParams(3, 3), max_tokens=9))
    driver.drain()
    assert driver.outcomes[10].num_preemptions == 0, "the eldest is never a victim"
    assert sum(driver.outcomes[key].num_preemptions for key in (20, 30)) > 0


def test_a_search_that_waits_again_has_no_token_and_may_be_shed() -> None:
    """It starts over, so it takes as long as one that has never run."""
    driver = Driver(replace(INFO, num_blocks=14, block_size=4))
    for key in (10, 20, 30):
        driver.add(search(key, prompt(5), BeamParams(3, 3), max_tokens=9, deadline=1e9))
    preempted: list[SequenceView] = []
    while not preempted:
        assert driver.step()
        waiting = [one for one in driver.scheduler.live() if one.status is Status.WAITING]
        preempted = [one.view for one in waiting if one.num_preemptions]
    assert [view.num_output_tokens for view in preempted] == [0] * len(preempted)
    assert sheddable(preempted) == preempted
    driver.drain()


def test_full_blocks_are_shared_and_the_last_one_is_copied_where_beams_part() -> None:
    driver = Driver()
    driver.add(search(1, prompt(20), BeamParams(4, 1), max_tokens=8))
    driver.step()
    plan = driver.schedule()
    assert plan is not None
    assert [(fork.sequence_id, fork.parent_id, fork.num_kept_blocks) for fork in plan.forks] == [
        (1, 1, 1),
        (2, 1, 1),
        (3, 1, 1),
        (4, 1, 2),
    ]
    assert [(copy.source, copy.destination) for copy in plan.copies] == [
        (1, fork.block_ids[0]) for fork in plan.forks[:3]
    ]
    assert driver.scheduler.snapshot().pool.held == 1 + 4
    driver.drain()


def test_a_block_boundary_needs_no_copy() -> None:
    driver = Driver()
    driver.add(search(1, prompt(32), BeamParams(4, 1), max_tokens=8))
    driver.step()
    plan = driver.schedule()
    assert plan is not None
    assert [(fork.num_kept_blocks, len(fork.block_ids)) for fork in plan.forks] == [(2, 1)] * 4
    assert plan.copies == ()
    driver.drain()


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("how", ["cancel", "deadline", "error", "restart", "hand over", "cut"])
def test_whatever_happens_no_block_is_lost(how: str, steps: int) -> None:
    driver = Driver()
    driver.add(search(1, prompt(20), BeamParams(4, 2), max_tokens=8, deadline=5.0))
    driver.add(request(9, prompt(20), max_tokens=8))
    for _ in range(steps):
        driver.step()
    driver.schedule()
    match how:
        case "cancel":
            driver.cancel(1)
        case "deadline":
            driver.sleep(6.0)
        case "error":
            driver.fail_next()
        case "restart":
            driver.restart()
        case "hand over":
            driver.hand_over(1, unheard=1)
        case "cut":
            driver.cut(1)
    driver.drain()


def test_what_never_fits_is_refused() -> None:
    """Width over seats; and a pool whose blocks suffice for the prompt, and not for one token of each beam."""
    driver = Driver(replace(INFO, max_sequences=4))
    assert not driver.add(search(1, prompt(5), BeamParams(5, 1)))
    assert driver.add(search(1, prompt(5), BeamParams(4, 1), max_tokens=2))
    small = Driver(replace(INFO, num_blocks=4, block_size=4))
    assert not small.add(search(1, prompt(8), BeamParams(3, 1)))
    assert small.add(search(1, prompt(8), BeamParams(2, 1)))
    small.drain()
    assert small.outcomes[1].num_output_tokens == 4, "as many as fit"
    driver.drain()
