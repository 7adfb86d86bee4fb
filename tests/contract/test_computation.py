"""What every step executor computes: the fake one and the real engine, called directly and over gRPC."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.step import (
    SampledToken,
    Sampling,
)
from common.step_executor import StepExecutor
from executor_svc.engine import Engine
from tests.contract.session import (
    GREEDY,
    NUM_BLOCKS,
    OTHER,
    PROMPT,
    SAMPLED,
    Session,
    grow,
    new,
    reference,
)
from tests.contract.subjects import Subject, fake_subject
from tests.contract.wire_executor import WireExecutor
from tests.fakes import reference_output


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("chunk", [1, 5, 16, 17])
@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_a_prompt_in_chunks_gives_the_tokens_of_one_piece(
    executor: StepExecutor, length: int, chunk: int, sampling: Sampling
) -> None:
    expected = reference(executor, PROMPT[:length], 4, sampling)
    session = Session(executor)
    free = iter(range(20, NUM_BLOCKS))
    drawn: dict[int, int] = {}
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        blocks = [next(free) for _ in range(-(-end // 16) - -(-start // 16))]
        if start == 0:
            first = new(1, PROMPT[:length], blocks, count=end, sampling=sampling)
            drawn = session.tokens(new_sequences=(first,))
        else:
            drawn = session.tokens(scheduled=(grow(1, *blocks, count=end - start),))
        assert bool(drawn) == (end == length), "only who has computed all it has draws"
    assert [drawn[1], *session.decode(1, length + 1, 3, free)] == expected


def test_the_fake_draws_what_it_should(engine: Engine) -> None:
    fake = fake_subject().executor
    assert tuple(reference(fake, PROMPT[:20], 20)) == reference_output(PROMPT[:20], 20, GREEDY, 101)
    assert tuple(reference(fake, PROMPT[:20], 20, SAMPLED)) == reference_output(PROMPT[:20], 20, SAMPLED, 101)
    assert len(set(reference(engine, PROMPT[:20], 20))) > 5, "a model that repeats itself would hide mistakes"


def test_every_token_of_the_prompt_counts(executor: StepExecutor) -> None:
    """Otherwise a wrong block table could go unseen by the tests here."""
    answers = set()
    for changed in (None, 0, 15, 16, 31, 39):
        prompt = [(token + (position == changed)) % 101 for position, token in enumerate(PROMPT[:40])]
        answers.add(tuple(reference(executor, prompt, 8)))
    assert len(answers) == 6


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_neighbours_do_not_matter(executor: StepExecutor, sampling: Sampling) -> None:
    expected = {key: reference(executor, PROMPT[key : 20 + 3 * key], 6, sampling) for key in range(5)}
    session = Session(executor)
    rows = tuple(
        new(key, PROMPT[key : 20 + 3 * key], (3 * key, 3 * key + 1, 3 * key + 2)[: -(-(20 + 2 * key) // 16)])
        for key in range(5)
    )
    drawn = {
        key: [token]
        for key, token in session.tokens(new_sequences=tuple(replace(r, sampling=sampling) for r in rows)).items()
    }
    for _ in range(5):
        plan = []
        for key in (3, 1, 4, 0, 2):
            position = 20 + 2 * key + len(drawn[key]) - 1
            plan.append(grow(key, *([20 + key] if position % 16 == 0 else [])))
        result = session.step(scheduled=tuple(plan))
        assert [token.sequence_id for token in result.sampled] == [3, 1, 4, 0, 2]
        for token in result.sampled:
            drawn[token.sequence_id].append(token.token_id)
    assert drawn == expected


def test_new_sequences_draw_before_known_ones_in_the_order_of_the_plan(executor: StepExecutor) -> None:
    session = Session(executor)
    session.step(new_sequences=(new(5, PROMPT[:4], [0]), new(2, PROMPT[:20], [1], count=10)))
    rows = (new(9, OTHER[:3], [3]), new(1, OTHER[:20], [4], count=5), new(4, OTHER[:3], [5]))
    result = session.step(new_sequences=rows, scheduled=(grow(2, 2, count=10), grow(5)))
    assert [token.sequence_id for token in result.sampled] == [9, 4, 2, 5]
    assert result.execute_ns > 0
    assert result.error is None


def test_a_plan_may_count_on_a_token_that_the_scheduler_has_not_seen(subject: Subject) -> None:
    executor = subject.executor
    expected = reference(executor, PROMPT[:15], 4)
    session = Session(executor)
    in_flight = [session.plan(new_sequences=(new(1, PROMPT[:15], [0]),)), session.plan(scheduled=(grow(1),))]
    in_flight += [session.plan(scheduled=(grow(1, 1),)), session.plan(scheduled=(grow(1),))]
    if isinstance(executor, WireExecutor):
        for plan in in_flight:
            executor.send(plan)
        results = [executor.receive() for _ in in_flight]
    else:
        results = [executor.step(plan) for plan in in_flight]
    assert [result.sampled for result in results] == [(SampledToken(1, token),) for token in expected]


def test_a_plan_without_rows_is_executed(executor: StepExecutor) -> None:
    session = Session(executor)
    result = session.step()
    assert (result.step, result.sampled, result.error) == (1, (), None)


def test_random_numbers_are_counted_from_the_end_of_the_prompt(executor: StepExecutor) -> None:
    """The same tokens as a prompt, and as a shorter prompt with two tokens drawn: other numbers, and greedy equal."""
    session = Session(executor)
    differ = 0
    for seed in range(8):
        for sampling in (GREEDY, Sampling(temperature=2.0, seed=seed)):
            rows = (
                new(1, PROMPT[:15], [0], sampling=sampling),
                new(2, PROMPT[:15], [1], prompt=13, sampling=sampling),
                new(3, PROMPT[:15], [2], prompt=13, sampling=sampling),
            )
            drawn = session.tokens(new_sequences=rows)
            session.step(finished_ids=(1, 2, 3))
            assert drawn[2] == drawn[3]
            assert sampling is not GREEDY or drawn[1] == drawn[2]
            differ += drawn[1] != drawn[2]
    assert differ > 0
