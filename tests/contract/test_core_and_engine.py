"""The scheduler core drives the real engine: sharing, copies, chunks and preemptions together leave REF untouched."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest

from common.step import Sampling, StepPlan
from executor_svc.engine import Engine
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.request import FinishReason, Request
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.policies import BUILT_IN
from tests.contract.session import GREEDY, OTHER, PROMPT, cached, reference, residents


def load(chance: random.Random) -> list[Request]:
    """Requests with shared beginnings, of lengths around the block size, greedy and drawn."""
    requests = []
    for key in range(24):
        prompt = [*chance.choice([PROMPT, OTHER])[: chance.choice([0, 15, 16, 17, 33, 48])], chance.randrange(101)]
        sampling = chance.choice([GREEDY, Sampling(temperature=0.8, top_k=40, seed=key)])
        asked = Request(key, tuple(prompt), sampling, 0.0, max_tokens=chance.choice([1, 16, 60, 90]), priority=key % 3)
        requests.append(asked)
    return requests


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_random_load_on_the_real_engine_gives_ref(engine: Engine, policy: str, window: int) -> None:
    requests = load(random.Random(window))
    expected = {r.sequence_id: reference(engine, r.prompt, r.max_tokens or 1, r.sampling) for r in requests}
    info = engine.describe()
    scheduler = Scheduler(info, GuardedPolicy(BUILT_IN[policy]()), term=engine.open(info.epoch, False), window=window)
    tokens: dict[int, list[int]] = {r.sequence_id: [] for r in requests}
    reasons: dict[int, FinishReason] = {}
    seen: Counter[str] = Counter()
    in_flight: deque[StepPlan] = deque()
    arriving = deque(requests)
    while True:
        for _ in range(min(2, len(arriving))):
            scheduler.add(arriving.popleft())
        while (plan := scheduler.schedule(0.0)) is not None:
            seen += Counter(preempted=len(plan.preempted_ids), copied=len(plan.copies), sealed=len(plan.sealed))
            in_flight.append(plan)
        if not in_flight:
            break
        for update in scheduler.apply(engine.step(in_flight.popleft()), 0.0):
            tokens[update.sequence_id] += update.token_ids
            if update.outcome is not None:
                reasons[update.sequence_id] = update.outcome.reason
    assert tokens == expected
    assert set(reasons.values()) == {FinishReason.LENGTH}
    assert min(seen["copied"], seen["sealed"]) > 0, seen
    assert (seen["preempted"] == 0) == (policy in ("contiguous", "static_batch")), "those reserve what could be needed"
    assert residents(engine) == {}
    assert len(cached(engine)) > 0
