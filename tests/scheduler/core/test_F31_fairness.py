"""F31: a tenant with a backlog does not make the others wait, nor gains by splitting its work or by having idled."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from bench.simulation import INFO, Simulation, request
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.request import Request
from scheduler_svc.policies import BUILT_IN

BUS = replace(INFO, max_sequences=8, max_step_tokens=256, num_blocks=512)


def play(policy: str, requests: list[Request], until: float = float("inf")) -> Simulation:
    changes: list[object] = []
    bus = Simulation(GuardedPolicy(BUILT_IN[policy](), on_change=changes.append), BUS)
    bus.run(requests, until)
    assert changes == [], "it was rolled back"
    return bus


def backlog(
    tenant: str, count: int, first_id: int, arrival: float = 0.0, size: tuple[int, int] = (400, 200)
) -> list[Request]:
    return [request(first_id + index, arrival, *size, tenant=tenant) for index in range(count)]


def trickle(tenant: str, count: int, first_id: int, size: tuple[int, int] = (20, 20)) -> list[Request]:
    """One a second."""
    return [request(first_id + index, float(index), *size, tenant=tenant) for index in range(count)]


def worst_wait(bus: Simulation, tenant: str) -> float:
    waits = [one.queued_s for key, one in bus.outcomes.items() if bus.requests[key].tenant == tenant]
    return max(wait for wait in waits if wait is not None)


def service(bus: Simulation, start: float, end: float) -> Counter[str]:
    """Tokens computed for and drawn by each tenant, as the policy bills them."""
    total: Counter[str] = Counter()
    for one in bus.served:
        if start <= one.time < end:
            total[one.tenant] += one.num_prompt_tokens + 2 * one.num_output_tokens
    return total


@pytest.mark.parametrize("jobs", [50, 100])
def test_the_wait_of_b_is_bounded_and_does_not_grow_with_the_backlog_of_a(jobs: int) -> None:
    load = backlog("a", jobs, 1000) + trickle("b", 20, 2000)
    fair, unfair = play("fair_share", load), play("fcfs", load)
    assert worst_wait(fair, "b") < 2.5
    assert worst_wait(unfair, "b") > 0.2 * jobs, "fcfs must show the unfairness"


def test_two_that_are_backlogged_get_the_same_whatever_their_requests_look_like() -> None:
    load = backlog("a", 200, 1000) + backlog("b", 2000, 3000, size=(20, 20))
    shares = service(play("fair_share", load, until=60.0), 5.0, 60.0)
    assert shares["b"] == pytest.approx(shares["a"], rel=0.2)
    unfair = service(play("fcfs", load, until=60.0), 5.0, 60.0)
    assert unfair["b"] < 0.2 * unfair["a"], "fcfs must show the unfairness"


def test_a_weight_of_three_is_three_times_the_service() -> None:
    policy = BUILT_IN["fair_share"](BUILT_IN["fair_share"].Parameters(weights={"a": 3.0}))
    bus = Simulation(GuardedPolicy(policy), BUS)
    bus.run(backlog("a", 400, 1000, size=(60, 60)) + backlog("b", 400, 3000, size=(60, 60)), until=40.0)
    shares = service(bus, 5.0, 40.0)
    assert shares["a"] == pytest.approx(3 * shares["b"], rel=0.2)


def test_idle_time_gives_no_credit() -> None:
    """C comes after a minute; from then on A and C get the same, not C all until it has caught up."""
    load = backlog("a", 600, 1000) + backlog("c", 200, 5000, arrival=60.0)
    bus = play("fair_share", load, until=100.0)
    shares = service(bus, 65.0, 100.0)
    assert shares["c"] == pytest.approx(shares["a"], rel=0.2)


def test_splitting_gains_nothing() -> None:
    whole = backlog("a", 100, 1000, size=(400, 200)) + backlog("b", 100, 3000, size=(400, 200))
    split = backlog("a", 1000, 1000, size=(40, 20)) + backlog("b", 100, 3000, size=(400, 200))
    for load in (whole, split):
        shares = service(play("fair_share", load, until=40.0), 5.0, 40.0)
        assert shares["a"] == pytest.approx(shares["b"], rel=0.2)


def test_one_alone_gets_everything() -> None:
    load = backlog("a", 60, 1000)
    assert play("fair_share", load).now == pytest.approx(play("fcfs", load).now, rel=0.02)
