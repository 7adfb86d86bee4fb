"""What each of the built-in policies decides, where `test_policies` and the field cases do not say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from common.step import StepPlan
from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.policy import Charge, Policy, Reservation, StepView
from scheduler_svc.core.request import FinishReason
from scheduler_svc.core.reservation import reservation
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.view import View, view_of
from scheduler_svc.policies.contiguous import Contiguous
from scheduler_svc.policies.deadline import Deadline
from scheduler_svc.policies.fair_share import MAX_TENANTS, FairShare
from scheduler_svc.policies.longest_prefix_match import LongestPrefixMatch
from scheduler_svc.policies.shortest_first import ShortestFirst
from scheduler_svc.policies.static_batch import StaticBatch
from tests.fakes import INFO
from tests.scheduler.core.driver import Driver, plans, request

STEP = StepView(max_tokens=100, num_decodes=3, num_seats=8, num_blocks=20, block_size=4)


def view(key: int, length: int = 4, output: int = 4, **options: Any) -> View:
    return view_of(Sequence(request(key, [key] * length, **options), output), BlockManager(8, 16, b"key"))


def boarding(made: list[StepPlan]) -> list[int]:
    return [row.sequence_id for plan in made for row in plan.new_sequences]


def ids(order: Any) -> list[int]:
    return [one.sequence_id for one in order]


def one_by_one(policy: Policy) -> Driver:
    """One seat, and a prompt of 64 tokens in the prefix cache."""
    driver = Driver(replace(INFO, max_sequences=1), policy, window=1)
    driver.add(request(0, range(64), max_tokens=1))
    driver.drain()
    return driver


def test_shortest_first_counts_what_is_not_cached_and_the_longest_reply() -> None:
    driver = one_by_one(ShortestFirst())
    driver.add(request(1, [9] * 30, max_tokens=5))  # 35
    driver.add(request(2, range(65), max_tokens=5))  # 64 are cached: 1 + 5
    driver.add(request(3, [8] * 3, max_tokens=40))  # 43
    assert boarding(plans(driver)) == [2, 1, 3]


def test_shortest_first_forgives_work_with_time() -> None:
    policy = ShortestFirst(ShortestFirst.Parameters(ageing=10.0))
    waiting = [view(1, length=50), view(2, length=10, arrival=3.9)]
    assert ids(policy.admission_order(waiting, STEP, 4.0)) == [2, 1]
    waiting[1] = view(2, length=10, arrival=4.1)
    assert ids(policy.admission_order(waiting, STEP, 4.1)) == [1, 2]
    assert policy.victim([view(1, length=50), view(2, length=51)], 0.0).sequence_id == 2
    assert policy.boarding_reserve(STEP, 0.0) == 48


def test_longest_prefix_match_boards_by_what_is_cached() -> None:
    driver = one_by_one(LongestPrefixMatch())
    driver.add(request(1, [9] * 65, max_tokens=1))
    driver.add(request(2, [*range(32), *[9] * 33], max_tokens=1))
    driver.add(request(3, range(65), max_tokens=1))
    assert boarding(plans(driver)) == [3, 2, 1]


def test_longest_prefix_match_has_a_bound_on_waiting() -> None:
    driver = one_by_one(LongestPrefixMatch())
    driver.add(request(1, [9] * 65, max_tokens=1))
    driver.sleep(10.1)
    driver.add(request(2, range(65), max_tokens=1, arrival=driver.now))
    assert boarding(plans(driver)) == [1, 2]


def test_deadline_boards_who_is_due_first_then_who_is_late() -> None:
    policy = Deadline(Deadline.Parameters(first_token_s=8.0, first_token_targets={"a": 2.0}))
    waiting = [view(1), view(2, tenant="a"), view(3, deadline=4.0), view(4, tenant="a", arrival=2.5)]
    assert ids(policy.admission_order(waiting, STEP, 1.0)) == [2, 3, 4, 1]
    assert ids(policy.admission_order(waiting, STEP, 3.0)) == [3, 4, 1, 2], "2 is late"
    assert ids(policy.admission_order(waiting, STEP, 60.1)) == [1, 2, 3, 4], "waited long enough"
    assert policy.victim(waiting, 0.0).sequence_id == 1


def test_deadline_sheds_who_cannot_be_in_time_by_its_own_limit() -> None:
    policy = Deadline(Deadline.Parameters(output_share=1.0))
    for step in range(3):  # a tenth of a second for 10 prompt tokens
        policy.charge([Charge(view(0), 10)], step * 0.1)
    waiting = [
        view(1, length=20, output=3, deadline=0.49),  # takes 0.2 + 0.3
        view(2, length=20, output=3, deadline=0.51),
        view(3, length=1000, output=3),
    ]
    assert ids(policy.shed(waiting, 0.0)) == [1]
    assert policy.export_state() == {"prompt_token_s": pytest.approx(0.01), "step_s": pytest.approx(0.1)}
    successor = Deadline(Deadline.Parameters(shed=False))
    successor.import_state(policy.export_state())
    assert successor.export_state() == policy.export_state()
    assert successor.shed(waiting, 0.0) == []


def test_who_is_shed_has_its_outcome_and_the_others_theirs() -> None:
    driver = Driver(replace(INFO, max_sequences=1), Deadline())
    driver.scheduler.policy.live.import_state({"prompt_token_s": 0.1})
    for key, deadline in enumerate((9.0, 0.5, 9.0)):
        driver.add(request(key, [key] * 20, max_tokens=2, deadline=deadline))
    driver.sleep(0.1)
    driver.drain()
    reasons = [driver.outcomes[key].reason for key in range(3)]
    assert reasons == [FinishReason.LENGTH, FinishReason.DEADLINE, FinishReason.LENGTH]


def test_static_batch_boards_nobody_until_all_have_left() -> None:
    driver = Driver(replace(INFO, max_sequences=3), StaticBatch(), window=2)
    for key in range(7):
        driver.add(request(key, [key] * 5, max_tokens=2 + 5 * (key % 3)))
    made = plans(driver)
    running: set[int] = set()
    cohorts = []
    for plan in made:
        running -= {*plan.finished_ids}
        if plan.new_sequences:
            assert not running
            cohorts.append(tuple(row.sequence_id for row in plan.new_sequences))
            running |= set(cohorts[-1])
    assert cohorts == [(0, 1, 2), (3, 4, 5), (6,)]


def test_static_batch_reserves_for_each_what_the_longest_needs() -> None:
    """20 blocks of 4 tokens: two of 2 blocks and one of 7 would fit as they are, but not as three of 7."""
    waiting = [view(1, 4, 4), view(2, 4, 4), view(3, 8, 20), view(4, 4, 4)]
    assert ids(StaticBatch().admission_order(waiting, STEP, 0.0)) == [1, 2]
    assert ids(StaticBatch().admission_order([view(1, 60, 100), view(2)], STEP, 0.0)) == [1], "one at least"
    assert ids(StaticBatch().admission_order(waiting, replace(STEP, running=[view(9)]), 0.0)) == []
    unknown = StaticBatch(StaticBatch.Parameters(longest_reply=36))  # 10 blocks each
    assert ids(unknown.admission_order([view(key) for key in range(5)], STEP, 0.0)) == [0, 1]


def test_static_batch_sets_the_seats_of_a_cohort_aside_until_all_have_left() -> None:
    """Two of 2 blocks each, of which one leaves: 2 seats and 4 blocks are nobody else's."""
    policy, waiting = StaticBatch(), [view(1, 4, 4), view(2, 4, 4), view(3, 8, 20), view(4, 4, 4)]
    policy.admission_order(waiting, STEP, 0.0)
    assert policy.reservation([waiting[1]]) == Reservation(num_seats=2, num_blocks=4)
    assert policy.reservation([]) is None
    successor = StaticBatch()
    successor.import_state(policy.export_state())
    assert successor.reservation(waiting[:2]) == Reservation(2, 4)
    assert successor.reservation([view(9)]) is None, "who boarded under another policy has what it holds"


def test_a_reservation_can_be_read_while_it_is_used() -> None:
    driver = Driver(replace(INFO, num_blocks=8, block_size=16), Contiguous(), window=1)
    driver.add(request(0, [1] * 10, max_tokens=30))
    driver.step()
    assert driver.scheduler.snapshot().pool.held == 1
    assert reservation(driver.scheduler) == Reservation(1, 3)
    driver.scheduler.policy.set(Policy())
    assert reservation(driver.scheduler) == Reservation(1, 1), "what is held"
    driver.drain()
    assert reservation(driver.scheduler) == Reservation(0, 0)


def test_contiguous_boards_who_fits_in_one_piece_in_order() -> None:
    """20 blocks of 4 tokens: 5 + 8 are taken by 1 and 2, and 3 does not fit in the last 7; nobody passes it."""
    policy = Contiguous()
    waiting = [view(1, 10, 10), view(2, 20, 12), view(3, 12, 20), view(4, 4, 4)]
    assert ids(policy.admission_order(waiting, STEP, 0.0)) == [1, 2]
    assert policy.export_state() == {"places": {1: (0, 5), 2: (5, 13)}}


def test_contiguous_waits_for_a_gap_however_much_is_free() -> None:
    policy = Contiguous()
    first = [view(1, 10, 14), view(2, 10, 14), view(3, 10, 14)]  # 6 blocks each, 2 are left over
    assert ids(policy.admission_order(first, STEP, 0.0)) == [1, 2, 3]
    middle_left, seven, six = replace(STEP, running=[first[0], first[2]]), [view(4, 14, 14)], [view(5, 20, 4)]
    assert ids(policy.admission_order(seven, middle_left, 0.0)) == [], "8 blocks are free, as 6 and 2"
    assert ids(policy.admission_order(six, middle_left, 0.0)) == [5]
    assert policy.export_state() == {"places": {1: (0, 6), 3: (12, 18), 5: (6, 12)}}


def test_contiguous_reserves_the_longest_reply_for_everybody() -> None:
    policy = Contiguous(Contiguous.Parameters(longest_reply=20))
    assert ids(policy.admission_order([view(1, 4, 4), view(2, 4, 30), view(3, 4, 4)], STEP, 0.0)) == [1, 2]
    assert policy.export_state() == {"places": {1: (0, 6), 2: (6, 15)}}
    assert ids(Contiguous().admission_order([view(1, 60, 100)], STEP, 0.0)) == [1], "the pool is enough for anybody"


def test_contiguous_finds_places_for_those_it_takes_over() -> None:
    seated = [view(1, 10, 14), view(2, 10, 14)]
    policy = Contiguous()
    assert ids(policy.admission_order([view(3, 10, 14)], replace(STEP, running=seated), 0.0)) == [3]
    successor = Contiguous()
    successor.import_state(policy.export_state())
    assert successor.export_state() == {"places": {1: (0, 6), 2: (6, 12), 3: (12, 18)}}
    too_many = [view(key, 10, 14) for key in range(4)]
    assert ids(Contiguous().admission_order([view(9)], replace(STEP, running=too_many), 0.0)) == []


def test_contiguous_takes_a_place_back_when_its_sequence_leaves() -> None:
    driver = Driver(replace(INFO, num_blocks=8, block_size=16), Contiguous(), window=2)
    for key in range(6):
        driver.add(request(key, [key] * 20, max_tokens=28))  # 3 blocks each: two at a time
    running, most = set[int](), 0
    for plan in plans(driver):
        running -= {*plan.finished_ids}
        running |= {row.sequence_id for row in plan.new_sequences}
        most = max(most, len(running))
        assert not plan.preempted_ids
    assert most == 2


def test_fair_share_hands_on_its_counters_and_forgets_the_lowest_of_too_many() -> None:
    policy = FairShare()
    policy.charge([Charge(view(1, tenant="a"), 10), Charge(view(2, tenant="b"), 1, 1)], 0.0)
    assert policy.export_state() == {"served": {"a": 10.0, "b": 2.0}}
    mixed = [Charge(view(3, tenant="a"), 7, 1), Charge(view(4, tenant="a"), 1, 1), Charge(view(5, tenant="b"), 4)]
    policy.charge(mixed, 0.0)
    assert policy.export_state() == {"served": {"a": 10.0 + 6 + 2 + 2, "b": 2.0 + 4}}, "prompt tokens 1, output 2"
    policy.import_state({"served": {f"t{number}": float(number) for number in range(3 * MAX_TENANTS)}})
    list(policy.admission_order([view(1, tenant="t5")], STEP, 0.0))
    served = policy.export_state()["served"]
    assert isinstance(served, dict) and len(served) == MAX_TENANTS
    assert "t5" in served and f"t{3 * MAX_TENANTS - 1}" in served and "t6" not in served


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        (ShortestFirst, {"ageing": -1.0}),
        (ShortestFirst, {"boarding_share": 1.5}),
        (ShortestFirst, {"eldest_every": 0}),
        (LongestPrefixMatch, {"max_wait_s": -1.0}),
        (FairShare, {"prompt_cost": 0.0, "output_cost": 0.0}),
        (FairShare, {"weights": {"a": 0.0}}),
        (Contiguous, {"longest_reply": -1}),
        (Deadline, {"first_token_s": 0.0}),
        (Deadline, {"output_share": 2.0}),
    ],
)
def test_parameters_that_make_no_sense_are_refused(policy: type[Policy], wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)) if "first" not in str(wrong) else "targets"):
        policy.Parameters(**wrong)
