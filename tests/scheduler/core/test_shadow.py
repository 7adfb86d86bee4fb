"""A dry run: asked beside the live policy, followed in nothing."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import replace

from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.policy import Policy, SequenceView, StepView
from scheduler_svc.core.shadow import MAX_TENANTS, Shadow
from tests.fakes import INFO
from tests.scheduler.core.driver import SMALL, Driver, plans, request


class Youngest(Policy):
    name = "youngest"

    def admission_order(self, waiting: ListOf[SequenceView], step: StepView, now: float) -> Iterable[SequenceView]:
        return waiting[::-1]

    def victim(self, running: ListOf[SequenceView], now: float) -> SequenceView:
        return running[0]


class Broken(Policy):
    name = "broken"

    def admission_order(self, waiting: ListOf[SequenceView], step: StepView, now: float) -> Iterable[SequenceView]:
        raise RuntimeError("boom")


def shadowed(policy: Policy, num_blocks: int = 64, tenants: int = 2) -> tuple[Shadow, list[object]]:
    """What the shadow has seen, and the plans that were made."""
    guarded = GuardedPolicy(Policy())
    guarded.observer = shadow = Shadow(GuardedPolicy(policy))
    driver = Driver(replace(SMALL, num_blocks=num_blocks, max_sequences=4), guarded, window=1)
    for key in range(4):
        driver.add(request(key, [key] * 5, max_tokens=12, tenant=f"t{key % tenants}"))
    return shadow, list(plans(driver))


def test_it_counts_what_differs_and_changes_no_plan() -> None:
    shadow, made = shadowed(Youngest())
    _, plain = shadowed(Policy())
    assert made == plain
    assert (shadow.boarding_steps, shadow.other_first, shadow.fault) == (1, 1, None)
    places = {tenant: (moves.places, moves.count) for tenant, moves in shadow.moves.items()}
    assert places == {"t0": (2, 2), "t1": (-2, 2)}  # 0: +3, 2: -1; 1: +1, 3: -3


def test_the_same_policy_differs_in_nothing() -> None:
    shadow, _ = shadowed(Policy(), num_blocks=8)
    assert shadow.boarding_steps > 1 and shadow.victims > 0
    assert (shadow.other_first, shadow.other_victims) == (0, 0)
    assert all(moves.places == 0 for moves in shadow.moves.values())


def test_other_victims_are_counted() -> None:
    shadow, made = shadowed(Youngest(), num_blocks=8)
    assert shadow.victims >= shadow.other_victims > 0
    assert made == shadowed(Policy(), num_blocks=8)[1]


def test_one_that_fails_is_not_asked_again() -> None:
    shadow, made = shadowed(Broken())
    assert shadow.fault == "admission_order: RuntimeError: boom"
    assert shadow.boarding_steps == 0
    assert made == shadowed(Policy())[1]


def test_the_tenants_it_names_are_bounded() -> None:
    guarded = GuardedPolicy(Policy())
    guarded.observer = shadow = Shadow(GuardedPolicy(Youngest()))
    driver = Driver(INFO, guarded)
    for key in range(MAX_TENANTS + 9):
        driver.add(request(key, [key], max_tokens=1, tenant=f"t{key}"))
    driver.drain()
    assert len(shadow.moves) == MAX_TENANTS + 1
    assert shadow.moves["other"].count >= 9
