from __future__ import annotations

import pytest

from scheduler_svc.core.policy import Policy, StepView
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.policies import BUILT_IN
from scheduler_svc.policies.priority import AGEING_SECONDS, Priority
from tests.scheduler.core.driver import request


def waiting(*facts: tuple[int, float, int]) -> list[Sequence]:
    """(id, arrival, priority) each."""
    return [Sequence(request(key, [1], arrival=arrival, priority=priority), 9) for key, arrival, priority in facts]


def test_the_built_in_policies_carry_their_names() -> None:
    assert sorted(BUILT_IN) == ["fcfs", "priority"]
    assert all(BUILT_IN[name]().name == name for name in BUILT_IN)


def test_fcfs_boards_the_eldest_and_gives_up_the_youngest() -> None:
    policy, crowd = BUILT_IN["fcfs"](), waiting((1, 0.0, 0), (2, 1.0, 9), (3, 2.0, -9))
    assert list(policy.admission_order(crowd, 5.0)) == crowd
    assert policy.victim(crowd, 5.0) is crowd[2]
    assert policy.token_budget(StepView(max_tokens=10, num_decodes=3), 5.0) == 7


def test_priority_boards_the_urgent_first_and_equals_by_arrival() -> None:
    crowd = waiting((1, 0.0, 0), (2, 0.0, 5), (3, 0.0, 5), (4, 0.0, -5))
    order = [view.sequence_id for view in Priority().admission_order(crowd, 0.0)]
    assert order == [2, 3, 1, 4]


def test_priority_gives_up_the_least_urgent_and_of_equals_the_youngest() -> None:
    crowd = waiting((1, 0.0, 1), (2, 0.0, 0), (3, 0.0, 0), (4, 0.0, 5))
    assert Priority().victim(crowd, 0.0).sequence_id == 3


@pytest.mark.parametrize(("later", "first"), [(0.9, 2), (1.1, 1)])
def test_one_ageing_period_is_worth_one_level_of_priority(later: float, first: int) -> None:
    crowd = waiting((1, 0.0, 0), (2, later * AGEING_SECONDS, 1))
    now = 100.0
    assert next(iter(Priority().admission_order(crowd, now))).sequence_id == first


def test_state_is_plain_and_survives_a_predecessor_of_another_kind() -> None:
    policy = Policy()
    assert policy.export_state() == {}
    policy.import_state({"of": "another kind"})
    assert policy.export_state() == {}
