from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import replace

import pytest

from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.policy import Charge, Policy, SequenceView, StepView
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.view import View, view_of
from scheduler_svc.policies import BUILT_IN
from scheduler_svc.policies.priority import Priority, PriorityParameters
from tests.fakes import INFO
from tests.scheduler.core.driver import SMALL, Driver, plans, request

STEP = StepView(max_tokens=10, num_decodes=3)


def waiting(*facts: tuple[int, float, int]) -> list[View]:
    """(id, arrival, priority) each."""
    blocks = BlockManager(8, 16, b"key")
    requests = [request(key, [1], arrival=arrival, priority=priority) for key, arrival, priority in facts]
    return [view_of(Sequence(one, 9), blocks) for one in requests]


def test_the_built_in_policies_carry_their_names() -> None:
    assert sorted(BUILT_IN) == [
        "contiguous",
        "deadline",
        "fair_share",
        "fcfs",
        "longest_prefix_match",
        "priority",
        "shortest_first",
        "static_batch",
    ]
    assert all(BUILT_IN[name]().name == name for name in BUILT_IN)


def test_fcfs_boards_the_eldest_and_gives_up_the_youngest() -> None:
    policy, crowd = BUILT_IN["fcfs"](), waiting((1, 0.0, 0), (2, 1.0, 9), (3, 2.0, -9))
    assert list(policy.admission_order(crowd, STEP, 5.0)) == crowd
    assert policy.victim(crowd, 5.0) is crowd[2]
    assert policy.token_budget(STEP, 5.0) == 7


def test_priority_boards_the_urgent_first_and_equals_by_arrival() -> None:
    crowd = waiting((1, 0.0, 0), (2, 0.0, 5), (3, 0.0, 5), (4, 0.0, -5))
    order = [view.sequence_id for view in Priority().admission_order(crowd, STEP, 0.0)]
    assert order == [2, 3, 1, 4]


def test_priority_gives_up_the_least_urgent_and_of_equals_the_youngest() -> None:
    crowd = waiting((1, 0.0, 1), (2, 0.0, 0), (3, 0.0, 0), (4, 0.0, 5))
    assert Priority().victim(crowd, 0.0).sequence_id == 3


@pytest.mark.parametrize(("later", "first"), [(0.9, 2), (1.1, 1)])
def test_one_ageing_period_is_worth_one_level_of_priority(later: float, first: int) -> None:
    crowd = waiting((1, 0.0, 0), (2, later * PriorityParameters().ageing_s, 1))
    now = 100.0
    assert next(iter(Priority().admission_order(crowd, STEP, now))).sequence_id == first


def test_state_is_plain_and_survives_a_predecessor_of_another_kind() -> None:
    policy = Policy()
    assert policy.export_state() == {}
    policy.import_state({"of": "another kind"})
    assert policy.export_state() == {}


class Stingy(Policy):
    name = "stingy"

    def token_budget(self, step: StepView, now: float) -> int:
        return 0


class Greedy(Policy):
    name = "greedy"

    def token_budget(self, step: StepView, now: float) -> int:
        return 10**9


@pytest.mark.parametrize("policy", [Stingy(), Greedy()])
def test_no_policy_can_break_the_budget_or_keep_work_from_being_done(policy: Policy) -> None:
    driver = Driver(replace(INFO, max_step_tokens=10), policy, window=1)
    for key in range(6):
        driver.add(request(key, [key] * 25, max_tokens=5))
    driver.drain()


class Meddler(Policy):
    """Admits in reverse, names the eldest it may as victim, and keeps the bill."""

    name = "meddler"

    def __init__(self) -> None:
        super().__init__()
        self.billed: dict[int, int] = {}

    def admission_order(self, waiting: ListOf[SequenceView], step: StepView, now: float) -> ListOf[SequenceView]:
        return waiting[::-1]

    def victim(self, running: ListOf[SequenceView], now: float) -> SequenceView:
        return running[0]

    def charge(self, charges: ListOf[Charge], now: float) -> None:
        for charge in charges:
            key = charge.sequence.sequence_id
            self.billed[key] = self.billed.get(key, 0) + charge.num_tokens


@pytest.mark.parametrize("window", [1, 2])
def test_everything_computed_is_billed_once_and_the_eldest_is_never_a_victim(window: int) -> None:
    policy = Meddler()
    driver = Driver(replace(SMALL, num_blocks=6), policy, window=window)
    for key in range(4):
        driver.add(request(key, [key] * 5, max_tokens=12))
    made = plans(driver)
    assert sum(policy.billed.values()) == sum(plan.num_tokens for plan in made)
    assert set(policy.billed) == {0, 1, 2, 3}
    boarded = [row.sequence_id for plan in made for row in plan.new_sequences]
    assert boarded[:2] == [3, 2], "the policy's order counts"
    assert any(plan.preempted_ids for plan in made)
    running: set[int] = set()
    for plan in made:
        assert not plan.preempted_ids or min(running) not in plan.preempted_ids
        running |= {row.sequence_id for row in plan.new_sequences}
        running -= {*plan.finished_ids, *plan.preempted_ids}


class Picky(Policy):
    """Admits nobody but who has the longest prompt."""

    name = "picky"

    def admission_order(self, waiting: ListOf[SequenceView], step: StepView, now: float) -> ListOf[SequenceView]:
        return [max(waiting, key=lambda view: view.num_prompt_tokens)]


def test_a_policy_may_admit_only_some() -> None:
    driver = Driver(SMALL, Picky(), window=1)
    for key, length in enumerate((2, 5, 3)):
        driver.add(request(key, [key] * length, max_tokens=3))
    boarded = [row.sequence_id for plan in plans(driver) for row in plan.new_sequences]
    assert boarded == [1, 2, 0]
