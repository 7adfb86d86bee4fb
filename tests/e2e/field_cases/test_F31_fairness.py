"""Tenants with and without a backlog on one bus, S = 4 and C = 64: who is served how much, in tokens and steps.

Every test runs under fair_share and under fcfs, set live: fcfs must show the unfairness, or the test proves nothing.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.field_cases.field import Field, Ride, running_field
from tests.e2e.field_cases.operate import set_policy
from tests.e2e.plan_log import journeys
from tests.harness import wait_until

OUTPUT_COST = 2
"""What fair_share bills for a token generated, a prompt token being 1."""

LARGE, SMALL = (80, 40), (20, 10)
"""(prompt, answer) in tokens; SMALL is LARGE split into four."""


@pytest.fixture(scope="module")
def shared_session(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    flags = ("--num-blocks", 64, "--max-sequences", 4, "--max-step-tokens", 64)
    with running_field(tiny, tmp_path_factory.mktemp("shared-bus"), executor=flags) as field:
        yield field


@pytest.fixture(params=["fair_share", "fcfs"])
def tenants(request: pytest.FixtureRequest, shared_session: Field) -> Iterator[Tenants]:
    set_policy(shared_session.bus, "fcfs")  # first: so that fair_share begins with nothing
    set_policy(shared_session.bus, request.param)
    yield Tenants(shared_session, request.param == "fair_share")
    shared_session.check()


class Tenants:
    """Sends their requests, and knows from the plan log what each was served."""

    def __init__(self, field: Field, fair: bool) -> None:
        self.field = field
        self.fair = fair
        self._since = len(field.bus.plans())
        self._rides: list[Ride] = []
        self._sizes: dict[int, tuple[str, int]] = {}
        self._next_id = field.bus.status().totals.accepted + 1

    def send(self, tenant: str, count: int, size: tuple[int, int]) -> list[int]:
        """`count` requests; returns the ids of their sequences."""
        ids = range(self._next_id, self._next_id + count)
        self._next_id += count
        for sequence in ids:
            prompt = [sequence % 250, *range(size[0] - 1)]
            self._rides.append(self.field.start(prompt, size[1], tenant=tenant, cache_salt=uuid.uuid4().hex))
            self._sizes[sequence] = (tenant, size[0])
        return list(ids)

    def finish(self) -> None:
        """Until every answer is there."""
        for ride in self._rides:
            ride.read()
        self.field.bus.wait_idle()

    def plans(self) -> list[dict[str, Any]]:
        """The plans since the beginning."""
        return self.field.bus.plans()[self._since :]

    def boarded(self, sequences: Sequence[int]) -> list[int]:
        """The step in which each of them boarded."""
        seen = journeys(self.plans())
        return [seen[sequence].boarded[0] for sequence in sequences]

    def service(self, start: int, end: int) -> Counter[str]:
        """What each tenant was served in the steps from `start` to before `end`, as fair_share bills it."""
        bills: Counter[str] = Counter()
        for sequence, journey in journeys(self.plans()).items():
            tenant, num_prompt = self._sizes[sequence]
            computed = 0
            for step, num_tokens in journey.rows.items():
                computed += num_tokens
                drawn = int(computed >= num_prompt)
                if start <= step < end:
                    bills[tenant] += num_tokens - drawn + OUTPUT_COST * drawn
        return bills


def test_F31_two_with_a_backlog_are_served_the_same_and_splitting_gains_nothing(tenants: Tenants) -> None:
    with tenants.field.paused():
        whole = tenants.send("a", 30, LARGE)
        split = tenants.send("b", 120, SMALL)
    tenants.finish()
    both_wait = tenants.boarded(whole[:1])[0], min(tenants.boarded([whole[-1], split[-1]]))
    bills = tenants.service(*both_wait)
    if tenants.fair:
        assert bills["a"] > 10 * (LARGE[0] + OUTPUT_COST * LARGE[1]), "both were busy for long"
        assert bills["b"] == pytest.approx(bills["a"], rel=0.2)
    else:
        assert bills["b"] < 0.2 * bills["a"]


def test_F31_the_wait_of_b_does_not_grow_with_the_backlog_of_a(tenants: Tenants) -> None:
    waits = {}
    for jobs in (20, 40):
        with tenants.field.paused():
            backlog = tenants.send("a", jobs, LARGE)
            (single,) = tenants.send("b", 1, SMALL)
        tenants.finish()
        start, boarded = tenants.boarded([backlog[0], single])
        waits[jobs] = boarded - start
    if tenants.fair:
        assert max(waits.values()) <= LARGE[1] + 8, "no longer than it takes until the first seat is free"
    else:
        assert waits[40] > 1.5 * waits[20] > 3 * (LARGE[1] + 8)


def test_F31_who_idled_gets_no_credit(tenants: Tenants) -> None:
    """A is served for long before C comes; from then on they get the same, and not C all until it has caught up."""
    with tenants.field.paused():
        before = tenants.send("a", 70, LARGE)
    seen = tenants.field.bus.status().totals.steps + 100
    wait_until(lambda: tenants.field.bus.status().totals.steps > seen, "A is served", 60)
    with tenants.field.paused():
        after = tenants.send("c", 20, LARGE)
        came = tenants.plans()[-1]["step"]
    tenants.finish()
    assert came < tenants.boarded(before)[-20], "A has a backlog when C comes"
    if tenants.fair:
        (first, *_, last) = tenants.boarded(after)
        assert first - came <= LARGE[1] + 8
        bills = tenants.service(first, min(last, *tenants.boarded(before[-1:])))
        assert bills["c"] == pytest.approx(bills["a"], rel=0.2)
    else:
        assert min(tenants.boarded(after)) >= max(tenants.boarded(before))


def test_F31_one_alone_has_every_seat(tenants: Tenants) -> None:
    with tenants.field.paused():
        jobs = tenants.send("a", 20, LARGE)
    tenants.finish()
    first, last = tenants.boarded([jobs[0], jobs[-1]])
    seats = [len(plan["new"]) + len(plan["scheduled"]) for plan in tenants.plans() if first + 4 < plan["step"] < last]
    assert sum(seats) > 3.8 * len(seats)
