"""Whatever a policy does, requests get REF, the policy is rolled back, and somebody is told why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import replace
from types import TracebackType
from typing import Any

import pytest

from scheduler_svc.core.answers import PolicyFault
from scheduler_svc.core.guard import GuardedPolicy, OverTime, PolicyChange
from scheduler_svc.core.policy import Charge, Policy, SequenceView, StepView
from scheduler_svc.core.request import FinishReason
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.policies.priority import Priority
from tests.fakes import INFO
from tests.scheduler.core.driver import SMALL, Driver, request


class Faulty(Policy):
    """Decides as told in one method, from its call number `healthy` + 1 on."""

    name = "faulty"

    def __init__(self, decision: str, deed: Any, healthy: int = 0) -> None:
        super().__init__()
        self.calls = 0

        def decide(*args: Any) -> Any:
            self.calls += 1
            return deed(*args) if self.calls > healthy else getattr(Policy, decision)(self, *args)

        setattr(self, decision, decide)


def boom(*args: object) -> Any:
    raise RuntimeError("boom")


def leave(*args: object) -> Any:
    raise SystemExit(3)


def late(*args: object) -> Any:
    """Half an answer, then an error."""
    yield args[0][0]  # type: ignore[index]
    raise KeyError("later")


def recurse(*args: object) -> Any:
    return recurse(*args)


STRANGER = Sequence(request(99, [1]), 1)

DEEDS = [
    ("admission_order", boom, "RuntimeError: boom"),
    ("admission_order", leave, "SystemExit: 3"),
    ("admission_order", late, "KeyError: 'later'"),
    ("admission_order", recurse, "RecursionError"),
    ("admission_order", lambda *args: None, "TypeError"),
    ("admission_order", lambda *args: 7, "TypeError"),
    ("admission_order", lambda *args: [None], "does not wait"),
    ("admission_order", lambda *args: [STRANGER], "does not wait"),
    ("admission_order", lambda waiting, *args: [*waiting, *waiting], "twice"),
    ("admission_order", lambda *args: [], "nobody board"),
    ("token_budget", boom, "RuntimeError"),
    ("token_budget", lambda *args: None, "expected an int"),
    ("token_budget", lambda *args: 2.5, "expected an int"),
    ("token_budget", lambda *args: True, "expected an int"),
    ("token_budget", lambda *args: -1, "expected an int"),
    ("token_budget", lambda *args: 10**9, "expected an int"),
    ("boarding_reserve", lambda *args: "some", "expected an int"),
    ("prefill_order", boom, "RuntimeError"),
    ("prefill_order", lambda *args: [STRANGER], "candidates"),
    ("prefill_order", lambda prefills, now: [prefills[0]] * 2, "candidates"),
    ("victim", boom, "RuntimeError"),
    ("victim", lambda *args: None, "candidates"),
    ("victim", lambda *args: STRANGER, "candidates"),
    ("charge", boom, "RuntimeError"),
]


def crowded(policy: Policy, changes: list[PolicyChange]) -> Driver:
    """A driver in which every decision is asked: prefills of several chunks, waiting, and a pool that runs out."""
    guarded = GuardedPolicy(policy, on_change=changes.append)
    driver = Driver(replace(SMALL, num_blocks=12, max_step_tokens=6), guarded)
    for key in range(6):
        driver.add(request(key, range(key, key + 9), max_tokens=20))
    return driver


@pytest.mark.parametrize("healthy", [0, 1])
@pytest.mark.parametrize(("decision", "deed", "reason"), DEEDS)
def test_a_policy_that_fails_is_rolled_back_and_no_request_notices(
    decision: str, deed: Any, reason: str, healthy: int
) -> None:
    changes: list[PolicyChange] = []
    policy = Faulty(decision, deed, healthy)
    driver = crowded(policy, changes)
    driver.drain()
    if reason == "nobody board" and healthy:  # it did not fail: somebody was always running when it said so
        assert len(changes) <= 1
        return
    assert policy.calls == healthy + 1, "it was asked again after it had failed"
    (change,) = changes
    assert (change.policy, change.before) == ("fcfs", "faulty")
    assert change.fault is not None and change.fault.startswith(f"{decision}: ") and reason in change.fault
    assert all(outcome.reason is FinishReason.LENGTH for outcome in driver.outcomes.values())


def test_a_policy_that_tampers_with_what_it_is_shown_misleads_only_itself() -> None:
    def tamper(waiting: ListOf[SequenceView], *args: object) -> ListOf[SequenceView]:
        waiting[0].priority = 5  # type: ignore[misc]
        return waiting

    changes: list[PolicyChange] = []
    crowded(Faulty("admission_order", tamper), changes).drain()
    assert changes[0].fault is not None and "FrozenInstanceError" in changes[0].fault


class Clocked:
    """A time limit on a clock that the test sets."""

    def __init__(self, limit_s: float) -> None:
        self.now = 0.0
        self._limit_s = limit_s
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = self.now

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None and self.now - self._started > self._limit_s:
            raise OverTime("too slow")


@pytest.mark.parametrize(("takes", "faults"), [(0.01, 0), (0.011, 1)])
def test_a_decision_over_its_time_is_not_used(takes: float, faults: int) -> None:
    clock = Clocked(0.01)

    def slow(waiting: ListOf[SequenceView], *args: object) -> ListOf[SequenceView]:
        clock.now += takes
        return waiting[::-1]

    changes: list[PolicyChange] = []
    driver = Driver(
        INFO, GuardedPolicy(Faulty("admission_order", slow), time_limit=clock, on_change=changes.append), window=1
    )
    for key in range(2):
        driver.add(request(key, [1], max_tokens=2))
    plan = driver.schedule()
    assert plan is not None
    order = [row.sequence_id for row in plan.new_sequences]
    assert order == ([0, 1] if faults else [1, 0])
    driver.drain()
    assert [change.fault for change in changes] == ["admission_order: too slow"] * faults


class Counting(Policy):
    """Its state is what it has been charged."""

    name = "counting"

    def __init__(self, stuck: bool = False) -> None:
        super().__init__()
        self.tokens = 0
        self._stuck = stuck

    def charge(self, charges: ListOf[Charge], now: float) -> None:
        self.tokens += sum(charge.num_tokens for charge in charges)

    def export_state(self) -> Mapping[str, object]:
        return boom() if self._stuck else {"tokens": self.tokens}  # type: ignore[no-any-return]

    def import_state(self, state: Mapping[str, object]) -> None:
        self.tokens = int(str(state.get("tokens", 0)))


def test_a_swap_hands_the_state_on() -> None:
    first, second = Counting(), Counting()
    guarded = GuardedPolicy(first)
    driver = Driver(INFO, guarded)
    driver.add(request(0, [1, 2, 3], max_tokens=4))
    driver.step()
    before = first.tokens
    guarded.set(second)
    driver.drain()
    assert second.tokens == 3 + 3 > before == first.tokens


@pytest.mark.parametrize("error", [KeyError("tokens"), SystemExit(3)])
def test_a_successor_that_cannot_take_over_is_refused_and_the_old_one_stays(error: BaseException) -> None:
    class Allergic(Policy):
        name = "allergic"

        def import_state(self, state: Mapping[str, object]) -> None:
            raise error

    live = Counting()
    guarded = GuardedPolicy(live)
    with pytest.raises(PolicyFault, match=f"allergic cannot take over: {type(error).__name__}"):
        guarded.set(Allergic())
    assert guarded.live is live


def test_a_state_that_cannot_be_had_is_none() -> None:
    class Exits(Policy):
        def export_state(self) -> Mapping[str, object]:
            raise SystemExit(3)

    assert GuardedPolicy(Exits()).exported() == {}


@pytest.mark.parametrize("stuck", [False, True])
def test_a_roll_back_goes_to_the_one_before_with_what_state_there_is(stuck: bool) -> None:
    good, changes = Counting(), []
    guarded = GuardedPolicy(good, on_change=changes.append)

    class Bad(Counting):
        name = "bad"

        def admission_order(self, waiting: ListOf[SequenceView], step: StepView, now: float) -> Iterable[SequenceView]:
            return boom()  # type: ignore[no-any-return]

    good.tokens = 5
    guarded.set(Bad(stuck))
    driver = Driver(INFO, guarded)
    driver.add(request(0, [1, 2, 3], max_tokens=1))
    driver.schedule()
    assert guarded.name == "bad", "the roll-back waits for the next step"
    driver.drain()
    assert guarded.live is good
    assert [change.policy for change in changes] == ["bad", "counting"]
    assert good.tokens == (0 if stuck else 5)


def test_swaps_in_the_middle_of_everything_change_no_token() -> None:
    """`Driver.drain` compares every answer with REF."""
    guarded = GuardedPolicy(Policy())
    driver = Driver(replace(SMALL, num_blocks=12, max_step_tokens=6), guarded)
    for key in range(6):
        driver.add(request(key, range(key, key + 9), max_tokens=20, priority=key % 3))
    policies = [Priority(), Faulty("victim", boom), Counting(), Faulty("charge", boom), Policy()]
    for policy in policies * 3:
        guarded.set(policy)
        driver.step()
    driver.drain()


class Unfair(Policy):
    """The youngest boards first."""

    name = "unfair"

    def admission_order(self, waiting: ListOf[SequenceView], step: StepView, now: float) -> Iterable[SequenceView]:
        return waiting[::-1]


def starve(**later: Any) -> list[PolicyChange]:
    """The first request waits, while every second another one, as `later` says, arrives and is served."""
    changes: list[PolicyChange] = []
    driver = Driver(
        replace(INFO, max_sequences=1),
        GuardedPolicy(Unfair(), starvation_s=10.0, on_change=changes.append),
        window=1,
    )
    driver.add(request(0, [1], max_tokens=1, tenant="a"))
    for key in range(1, 60):
        driver.add(request(key, [1], max_tokens=1, arrival=driver.now, **later))
        driver.step()
        driver.sleep(1.0)
        if changes:
            break
    driver.drain()
    return changes


def test_a_policy_that_starves_is_rolled_back() -> None:
    (change,) = starve(tenant="a")
    assert change.fault is not None and "waits for 13 s" in change.fault


def test_a_tenant_of_whom_nobody_boards_starves_by_whoever_passes() -> None:
    (change,) = starve(tenant="b")
    assert change.fault is not None and "later ones pass" in change.fault


@pytest.mark.parametrize("later", [{"tenant": "a", "priority": 1}, {"tenant": "a", "deadline": 1e6}])
def test_who_has_a_higher_claim_may_pass(later: dict[str, Any]) -> None:
    assert starve(**later) == []


class Sheds(Policy):
    name = "sheds"

    def __init__(self, everybody: bool = False) -> None:
        super().__init__()
        self._everybody = everybody

    def shed(self, waiting: ListOf[SequenceView], now: float) -> Iterable[SequenceView]:
        return [view for view in waiting if self._everybody or (view.deadline is not None and view.deadline < 5.0)]


def test_who_is_shed_ends_as_if_its_time_had_passed() -> None:
    driver = Driver(INFO, Sheds())
    for key, deadline in enumerate((4.0, 6.0, None)):
        driver.add(request(key, [1], max_tokens=3, deadline=deadline))
    updates = driver.scheduler.expire(0.0)
    assert [(one.sequence_id, one.outcome and one.outcome.reason) for one in updates] == [(0, FinishReason.DEADLINE)]


def test_nobody_without_a_time_limit_is_shed() -> None:
    changes: list[PolicyChange] = []
    driver = Driver(INFO, GuardedPolicy(Sheds(everybody=True), on_change=changes.append))
    for key, deadline in enumerate((4.0, None)):
        driver.add(request(key, [1], max_tokens=3, deadline=deadline))
    assert driver.scheduler.expire(0.0) == []
    driver.drain()
    assert changes[0].fault is not None and "without a time limit" in changes[0].fault
