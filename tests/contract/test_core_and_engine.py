"""The scheduler core drives the real engine: sharing, copies, chunks and preemptions together leave REF untouched."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace

import pytest

from common.grammar import Grammar, GrammarKind
from common.logprobs import TokenLogprobs
from common.step import ExecutorInfo, Sampling, StepPlan
from executor_svc.engine import Engine
from scheduler_svc.core.adoption import Residency
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.readings import Totals
from scheduler_svc.core.request import FinishReason, Request, SequenceUpdate
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.policies import BUILT_IN
from tests.checkpoints import EOS
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


@dataclass
class Ran:
    """What came out: tokens, log-probabilities and reasons by sequence, how often the plans did what, and the most
    tokens of one."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    scores: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    largest: int = 0
    totals: Totals = field(default_factory=Totals)


def drive(
    engine: Engine,
    info: ExecutorInfo,
    policy: str,
    requests: list[Request],
    window: int = 2,
    break_every: int | None = None,
    speculative_tokens: int = 0,
) -> Ran:
    """Two requests more arrive before every step, until all have ended. After every so many, results are lost."""
    guarded, term = GuardedPolicy(BUILT_IN[policy]()), engine.open(info.epoch, False)
    scheduler = Scheduler(info, guarded, term=term, window=window, speculative_tokens=speculative_tokens)
    ran = Ran({r.sequence_id: [] for r in requests})
    asked = {request.sequence_id: request for request in requests}
    in_flight: deque[StepPlan] = deque()
    arriving = deque(requests)
    while True:
        for _ in range(min(2, len(arriving))):
            scheduler.add(arriving.popleft())
        while (plan := scheduler.schedule(0.0)) is not None:
            ran.seen += Counter(preempted=len(plan.preempted_ids), copied=len(plan.copies), sealed=len(plan.sealed))
            ran.largest = max(ran.largest, plan.num_tokens)
            in_flight.append(plan)
        if not in_flight:
            ran.totals = scheduler.totals
            return ran
        news = scheduler.apply(engine.step(in_flight.popleft()), 0.0)
        ran.seen["steps"] += 1
        if break_every is not None and ran.seen["steps"] % break_every == 0:
            news += break_connection(engine, info, scheduler, in_flight)
            ran.seen["broken"] += 1
        for update in news:
            ran.tokens[update.sequence_id] += update.token_ids
            if update.scored is not None:
                scores = ran.scores.setdefault(update.sequence_id, [])
                assert update.scored.first_position == first_scored(asked[update.sequence_id]) + len(scores)
                scores += update.scored.scores
            if update.outcome is not None:
                ran.reasons[update.sequence_id] = update.outcome.reason


def break_connection(
    engine: Engine, info: ExecutorInfo, scheduler: Scheduler, in_flight: deque[StepPlan]
) -> list[SequenceUpdate]:
    """The plans in flight are computed, and nobody hears of it."""
    while in_flight:
        engine.step(in_flight.popleft())
    term = engine.open(info.epoch, True)
    return scheduler.resume(info, term, Residency.of(engine.resident(256)), 0.0)


def first_scored(request: Request) -> int:
    return 1 if request.sampling.num_prompt_logprobs is not None else len(request.prompt)


@dataclass(frozen=True)
class Load:
    """Requests, and REF of each, for steps of which so many are in flight."""

    window: int
    requests: list[Request]
    references: dict[int, list[int]]


@pytest.fixture(scope="module", params=[1, 2])
def random_load(request: pytest.FixtureRequest, engine: Engine) -> Load:
    requests = load(random.Random(request.param))
    found = {r.sequence_id: reference(engine, r.prompt, r.max_tokens or 1, r.sampling) for r in requests}
    return Load(request.param, requests, found)


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_random_load_on_the_real_engine_gives_ref(engine: Engine, policy: str, random_load: Load) -> None:
    ran = drive(engine, engine.describe(), policy, random_load.requests, random_load.window)
    assert ran.tokens == random_load.references
    assert set(ran.reasons.values()) == {FinishReason.LENGTH}
    assert min(ran.seen["copied"], ran.seen["sealed"]) > 0, ran.seen
    assert (ran.seen["preempted"] == 0) == (policy in ("contiguous", "static_batch")), (
        "those reserve what could be needed"
    )
    assert residents(engine) == {}
    assert len(cached(engine)) > 0


@pytest.mark.parametrize("chunk", [1, 15, 16, 17, 40, 41])
@pytest.mark.parametrize("policy", ["fcfs", "shortest_first"])
def test_F30_any_chunk_size_gives_ref(engine: Engine, policy: str, chunk: int) -> None:
    """C is 1, a block less one, a block, one more, a prompt, and one more; four prompts share their steps."""
    sampled = Sampling(temperature=0.8, seed=3)
    prompts = [tuple([key, *PROMPT][:40]) for key in range(4)]
    requests = [Request(key, prompts[key], (GREEDY, sampled)[key % 2], 0.0, max_tokens=9) for key in range(4)]
    expected = {r.sequence_id: reference(engine, r.prompt, 9, r.sampling) for r in requests}
    ran = drive(engine, replace(engine.describe(), max_step_tokens=chunk), policy, requests)
    assert ran.tokens == expected
    assert ran.largest == chunk


def test_log_probabilities_of_results_that_were_lost_are_computed_again(engine: Engine) -> None:
    """The connection breaks every third step, in prefills and decodes, with two results on their way; the same
    scheduler goes on."""
    asking = Sampling(temperature=0.8, seed=3, num_logprobs=1, num_prompt_logprobs=0, frequency_penalty=0.5)
    requests = [Request(key, tuple([key, *PROMPT][:40]), asking, 0.0, max_tokens=24) for key in range(3)]
    requests += [Request(key, tuple([key, *PROMPT][:40]), GREEDY, 0.0, max_tokens=24) for key in range(3, 5)]
    info = replace(engine.describe(), max_step_tokens=33)
    alone = [drive(engine, info, "fcfs", [each]) for each in requests]
    ran = drive(engine, info, "fcfs", requests, break_every=3)
    assert ran.seen["broken"] > 5
    for each, other in zip(requests, alone, strict=True):
        assert ran.tokens[each.sequence_id] == other.tokens[each.sequence_id]
        assert ran.scores.get(each.sequence_id) == other.scores.get(each.sequence_id)


@pytest.mark.parametrize("kind", ["engine", "native_engine"])
def test_log_probabilities_come_once_for_every_token_whatever_happens(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """Beside others that share prefixes and are preempted; each has the numbers that it has alone."""
    engine: Engine = request.getfixturevalue(kind)
    chance = random.Random(9)
    requests = [
        replace(
            each,
            max_tokens=70,
            sampling=replace(
                each.sampling,
                num_logprobs=chance.choice([None, 0, 3]),
                num_prompt_logprobs=chance.choice([None, 0, 2]),
                presence_penalty=chance.choice([0.0, 1.0]),
            ),
        )
        for each in load(chance)[:10]
    ]
    alone = [drive(engine, engine.describe(), "fcfs", [each]) for each in requests]
    ran = drive(engine, replace(engine.describe(), max_step_tokens=33), "fcfs", requests)
    assert min(ran.seen["preempted"], ran.seen["copied"]) > 0, ran.seen
    for each, other in zip(requests, alone, strict=True):
        key, sampling = each.sequence_id, each.sampling
        assert ran.tokens[key] == other.tokens[key]
        assert ran.scores.get(key, []) == other.scores.get(key, [])
        in_prompt = 0 if sampling.num_prompt_logprobs is None else len(each.prompt) - 1
        in_answer = 0 if sampling.num_logprobs is None else len(ran.tokens[key])
        assert len(ran.scores.get(key, [])) == in_prompt + in_answer


@pytest.mark.parametrize("kind", ["engine", "native_engine"])
def test_speculation_gives_ref(request: pytest.FixtureRequest, kind: str) -> None:
    """Right and wrong guesses beside prefills, preemptions and lost results."""
    engine: Engine = request.getfixturevalue(kind)
    keys = (12, 26, 31, 33, 34)  # after eight of these, answers repeat themselves at times
    requests = [
        Request(key, (key,) * 8, Sampling(temperature=(0.0, 0.0, 0.3)[key % 3], seed=key), 0.0, max_tokens=64)
        for key in keys
    ]
    expected = {r.sequence_id: reference(engine, r.prompt, 64, r.sampling) for r in requests}
    info = replace(engine.describe(), num_blocks=12)
    ran = drive(engine, info, "fcfs", requests, break_every=8, speculative_tokens=5)
    assert ran.tokens == expected
    assert min(ran.seen["sealed"], ran.seen["preempted"], ran.seen["broken"]) > 0, ran.seen
    assert 100 < ran.totals.accepted_draft_tokens < ran.totals.draft_tokens
    assert residents(engine) == {}


@pytest.mark.parametrize(("source", "answer", "chunk"), [("ab?", [ord("a")], 128), ("b", [], len(PROMPT) - 1)])
def test_an_answer_that_cannot_go_on_ends_with_its_error_though_that_result_is_lost(
    engine: Engine, source: str, answer: list[int], chunk: int
) -> None:
    """In the second step, of which nobody hears: what is drawn there, where nothing may be drawn, is told to nobody."""
    stuck = Sampling(grammar=Grammar(GrammarKind.REGEX, source, (EOS,)), banned_token_ids=(ord("b"), EOS))
    request = Request(1, PROMPT, stuck, 0.0, stop_token_ids=frozenset({EOS}), max_tokens=len(answer) + 1)
    ran = drive(engine, replace(engine.describe(), max_step_tokens=chunk), "fcfs", [request], break_every=1)
    assert ran.tokens == {1: answer}
    assert ran.reasons == {1: FinishReason.ERROR}
