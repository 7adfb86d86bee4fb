"""Steps that begin while the one before is computed: the same tokens, failures, and what waits."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from common.metrics import ExecutorMetrics
from common.model_identity import ModelIdentity
from common.step import (
    BlockCopy,
    Draft,
    Fork,
    InvalidPlan,
    NewSequence,
    Sampling,
    ScheduledSequence,
    SealedBlock,
    StepResult,
)
from common.step_executor import PendingStep
from executor_svc.config import Config
from executor_svc.constraints import Constraints
from executor_svc.engine import Engine, EngineLimits
from executor_svc.pending import DeviceTime
from executor_svc.startup import load_engine
from tests.executor.driver import GREEDY, Rider, Session, generate
from tests.executor.service_client import Client

SEEDED = Sampling(temperature=0.9, top_k=40, top_p=0.9, seed=7)
PENALISED = Sampling(temperature=0.0, presence_penalty=1.5)
SCORED = Sampling(temperature=0.0, num_logprobs=2, num_prompt_logprobs=1)
UNHEARD = -7
"""What a rider has in place of a token whose result was not asked for."""


@pytest.fixture(scope="module")
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture(scope="module")
def engine(tiny: Path, registry: CollectorRegistry) -> Engine:
    """One that pipelines, on a CPU: its tokens are there at once, but nobody looks at them."""
    metrics = ExecutorMetrics(registry)
    plain = load_engine(Config(model=tiny, num_threads=1, num_blocks=256), ExecutorMetrics(CollectorRegistry()))
    limits = EngineLimits(512, 16, 512)
    constraints = Constraints(tiny, plain.describe().vocab_size, 1)
    return Engine(ModelIdentity("tiny", b""), plain.runner, constraints, limits, metrics, pipelines=True)


def prompt(length: int, first: int = 20) -> tuple[int, ...]:
    return tuple(first + (7 * position) % 200 for position in range(length))


def new(sequence_id: int, tokens: Sequence[int], *blocks: int, sampling: Sampling = GREEDY) -> NewSequence:
    return NewSequence(sequence_id, tuple(tokens), len(tokens), 0, len(tokens), blocks, sampling)


def ended(begun: StepResult | PendingStep) -> StepResult:
    result = begun if isinstance(begun, StepResult) else begun.result()
    assert result.error is None, result.error
    assert result.idle_ns >= 0 and result.execute_ns > 0
    return result


def generate_ahead(
    engine: Engine, prompts: Sequence[Sequence[int]], count: int, samplings: Sequence[Sampling], seed: int
) -> list[list[int]]:
    """As `driver.generate`, with up to three plans ahead of the last result that was asked for."""
    chance = random.Random(seed)
    session = Session(engine)
    free = iter(range(session.info.num_blocks))
    riders = [Rider(key, *pair, count) for key, pair in enumerate(zip(prompts, samplings, strict=True))]
    ahead: deque[tuple[StepResult | PendingStep, list[tuple[Rider, int]]]] = deque()

    def deliver() -> None:
        begun, places = ahead.popleft()
        for token, (rider, place) in zip(ended(begun).sampled, places, strict=True):
            assert token.sequence_id == rider.sequence_id
            rider.output[place] = token.token_id

    while active := [rider for rider in riders if not rider.done]:
        chosen = [rider for rider in active if chance.random() < 0.8] or active
        chosen.sort(key=lambda rider: rider.resident)
        rows = [rider.row(chance.choice((5, 16, 40)), free, session.info.block_size) for rider in chosen]
        plan = session.plan(
            new_sequences=tuple(row for row in rows if isinstance(row, NewSequence)),
            scheduled=tuple(row for row in rows if isinstance(row, ScheduledSequence)),
        )
        ahead.append(
            (engine.begin(plan), [(rider, len(rider.output)) for rider in chosen if rider.computed == rider.known])
        )
        for rider, _ in ahead[-1][1]:
            rider.output.append(UNHEARD)
        while len(ahead) > chance.choice((1, 2, 3)):
            deliver()
    while ahead:
        deliver()
    return [rider.output for rider in riders]


@pytest.mark.parametrize("seed", range(6))
def test_the_tokens_are_those_of_steps_that_wait(engine: Engine, seed: int) -> None:
    prompts = [prompt(length, 20 + length) for length in (1, 15, 16, 17, 31, 32, 33)]
    kinds = [GREEDY, SEEDED, GREEDY, SEEDED, GREEDY, SEEDED, PENALISED if seed % 2 else GREEDY]
    expected = generate(engine, prompts, 9, samplings=kinds)
    assert generate_ahead(engine, prompts, 9, kinds, seed) == expected


def test_a_step_begins_while_the_one_before_is_pending(engine: Engine) -> None:
    session = Session(engine)
    first = engine.begin(session.plan(new_sequences=(new(1, prompt(20), 0, 1),)))
    second = engine.begin(session.plan(scheduled=(ScheduledSequence(1, 1),)))
    third = engine.begin(session.plan(scheduled=(ScheduledSequence(1, 1),)))
    assert not isinstance(first, StepResult) and not isinstance(second, StepResult)
    assert not isinstance(third, StepResult)
    results = [step.result() for step in (third, second, first)]  # each waits for those before it
    assert [result.step for result in results] == [3, 2, 1]
    tokens = [result.sampled[0].token_id for result in reversed(results)]
    assert [tokens] == generate(engine, [prompt(20)], 3)
    assert [result.idle_ns for result in results[:2]] == [0, 0] and all(result.execute_ns > 0 for result in results)


def test_two_steps_are_pending_at_most(engine: Engine) -> None:
    session = Session(engine)
    steps = [engine.begin(session.plan(new_sequences=(new(1, prompt(20), 0, 1),)))]
    steps += [engine.begin(session.plan(scheduled=(ScheduledSequence(1, 1),))) for _ in range(3)]
    assert [not isinstance(step, StepResult) and step.known.done() for step in steps] == [True, True, False, False]


@pytest.mark.parametrize("sampling", [PENALISED, SCORED])
def test_what_needs_the_tokens_waits_for_them(engine: Engine, sampling: Sampling) -> None:
    """The sequence itself is not pending ever; a neighbour of it, and the next step, are not then."""
    session = Session(engine)
    first = engine.begin(session.plan(new_sequences=(new(1, prompt(17), 0, 1),)))
    second = engine.begin(
        session.plan(new_sequences=(new(2, prompt(31), 2, 3, sampling=sampling),), scheduled=(ScheduledSequence(1, 1),))
    )
    assert not isinstance(first, StepResult) and first.known.done()
    assert isinstance(second, StepResult) and second.idle_ns == 0
    third = engine.begin(session.plan(scheduled=(ScheduledSequence(1, 1),)))
    assert not isinstance(third, StepResult), "who asks for more is not in it"
    alone = generate(engine, [prompt(17)], 3)
    drawn = [ended(first).sampled[0], second.sampled[1], ended(third).sampled[0]]
    assert [[token.token_id for token in drawn]] == alone


def test_a_draft_waits_and_is_held_against_the_tokens(engine: Engine) -> None:
    expected = generate(engine, [prompt(20)], 4)[0]
    session = Session(engine)
    first = engine.begin(session.plan(new_sequences=(new(1, prompt(20), 0, 1),)))
    guesses = Draft(1, tuple(expected[1:3]))
    second = engine.begin(session.plan(scheduled=(ScheduledSequence(1, 1),), drafts=(guesses,)))
    assert isinstance(second, StepResult)
    drawn = [*ended(first).sampled, *second.sampled]
    assert [token.token_id for token in drawn] == expected


def test_a_fork_and_a_copy_while_a_step_is_pending(engine: Engine) -> None:
    session = Session(engine)
    first = engine.begin(session.plan(new_sequences=(new(1, prompt(20), 0, 1),)))
    fork = Fork(2, parent_id=1, token_id=99, num_kept_blocks=1, block_ids=(5,))
    second = engine.begin(session.plan(scheduled=(ScheduledSequence(1, 1),), forks=(fork,), copies=(BlockCopy(1, 5),)))
    assert not isinstance(second, StepResult) and not isinstance(first, StepResult) and not first.known.done()
    of_parent, of_fork = (token.token_id for token in ended(second).sampled)
    assert [[ended(first).sampled[0].token_id, of_parent]] == generate(engine, [prompt(20)], 2)
    assert [[of_fork]] == generate(engine, [(*prompt(20), 99)], 1)


def test_who_takes_over_is_told_every_token(engine: Engine) -> None:
    session = Session(engine)
    engine.begin(session.plan(new_sequences=(new(1, prompt(20), 0, 1),)))
    engine.begin(session.plan(scheduled=(ScheduledSequence(1, 1),)))
    (page,) = engine.resident(10)
    assert page.last_step == 2
    assert [list(page.sequences[0].token_ids[20:])] == generate(engine, [prompt(20)], 2)


def test_a_new_session_finds_the_tokens_of_the_old_one(engine: Engine) -> None:
    session = Session(engine)
    begun = engine.begin(session.plan(new_sequences=(new(1, prompt(20), 0, 1),)))
    newer = Session(engine, resume=True, step=1)
    assert not isinstance(begun, StepResult) and begun.known.done()
    tokens = [ended(begun).sampled[0].token_id, *newer.drawn(scheduled=(ScheduledSequence(1, 1),))]
    assert [tokens] == generate(engine, [prompt(20)], 2)


def test_a_device_that_fails_takes_down_what_was_begun_on_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(engine)
    seal = SealedBlock(0, bytes(16))
    first = engine.begin(session.plan(new_sequences=(new(1, prompt(20), 0, 1),), sealed=(seal,)))
    second = engine.begin(session.plan(new_sequences=(new(2, prompt(20), 2, 3),)))
    assert not isinstance(first, StepResult) and not isinstance(second, StepResult)

    def broken(moment: DeviceTime) -> None:
        raise RuntimeError("illegal memory access")

    with monkeypatch.context() as patch:
        patch.setattr(DeviceTime, "wait", broken)
        first.wait()  # there is nothing to wait for any more
        assert first.result().error == "RuntimeError"
    third = engine.begin(session.plan(new_sequences=(new(3, prompt(20), 4, 5),)))  # its tokens are behind the second's
    assert not isinstance(third, StepResult)
    assert third.result().error == "RuntimeError"
    assert (second.result().error, second.result().sampled) == ("RuntimeError", ())
    (page,) = engine.resident(10)
    assert (page.sequences, page.cached) == ((), ()), "nobody knows what the pool holds"
    with pytest.raises(InvalidPlan):
        engine.begin(session.plan(scheduled=(ScheduledSequence(1, 1),)))
    assert len(generate(engine, [prompt(20)], 2)[0]) == 2


def test_a_failing_launch_leaves_the_step_before_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(engine)
    first = engine.begin(session.plan(new_sequences=(new(1, prompt(20), 0, 1),)))

    def broken(*arguments: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr("executor_svc.model_runner.build_batch", broken)
        second = engine.begin(session.plan(new_sequences=(new(2, prompt(20), 2, 3),)))
    assert isinstance(second, StepResult) and second.error == "RuntimeError"
    third = engine.begin(session.plan(scheduled=(ScheduledSequence(1, 1),)))
    tokens = [ended(first).sampled[0].token_id, ended(third).sampled[0].token_id]
    assert [tokens] == generate(engine, [prompt(20)], 2)


def test_plans_without_rows_and_prefill_chunks_are_pipelined_too(engine: Engine) -> None:
    session = Session(engine)
    chunk = NewSequence(1, prompt(20), 20, 0, 16, (0,), GREEDY)
    steps = [engine.begin(session.plan(new_sequences=(chunk,)))]
    steps.append(engine.begin(session.plan(scheduled=(ScheduledSequence(1, 4, (1,)),))))
    steps.append(engine.begin(session.plan(finished_ids=(1,))))
    assert not any(isinstance(step, StepResult) for step in steps)
    drawn = [[token.token_id for token in ended(step).sampled] for step in steps]
    assert drawn == [[], *generate(engine, [prompt(20)], 1), []]


def test_the_steps_are_timed(engine: Engine, registry: CollectorRegistry) -> None:
    def count() -> float | None:
        return registry.get_sample_value("citybus:executor_forward_seconds_count")

    before = count() or 0
    session = Session(engine)
    began = time.perf_counter_ns()
    step = engine.begin(session.plan(new_sequences=(new(1, prompt(20), 0, 1),)))
    time.sleep(0.02)
    first = ended(step)
    second = ended(engine.begin(session.plan(finished_ids=(1,))))
    assert 20_000_000 <= first.execute_ns <= first.execute_ns + second.execute_ns <= time.perf_counter_ns() - began
    assert count() == before + 1, "a step without rows has no forward pass"


async def test_through_the_service_what_waits_and_what_does_not_give_the_same_tokens(engine: Engine) -> None:
    client = Client(engine)
    await client.start()
    session = await client.session()
    await session.send(new_sequences=(new(1, prompt(17), 0, 1),))
    await session.send(
        new_sequences=(new(2, prompt(31), 2, 3, sampling=PENALISED),), scheduled=(ScheduledSequence(1, 1),)
    )
    await session.send(scheduled=(ScheduledSequence(1, 1),))
    results = [await session.result() for _ in range(3)]
    drawn = [token.token_id for result in results for token in result.sampled if token.sequence_id == 1]
    assert client.metric("executor_steps_total") == 3
    await client.stop()
    assert [drawn] == generate(engine, [prompt(17)], 3)
