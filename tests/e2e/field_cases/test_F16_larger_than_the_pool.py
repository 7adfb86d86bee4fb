"""Requests that the whole pool cannot hold: P = 8 blocks of 16 tokens, L = 1024."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from citybus import FinishReason, InvalidRequest
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import Field, running_executor, running_field, scheduler_field, together

CAPACITY = 8 * 16
SMALL = [[10 + index, 3, 4, 5] for index in range(5)]


@pytest.fixture(scope="module")
def small_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("small-pool")
    model = write_tiny(folder / "tiny", max_model_len=1024)
    with running_field(model, folder / "bus", executor=("--num-blocks", 8)) as field:
        yield field


@pytest.fixture
def small_field(small_session: Field) -> Iterator[Field]:
    yield small_session
    small_session.check()


def prompt_of(length: int) -> list[int]:
    return [(7 * position) % 250 for position in range(length)]


def test_F16_prompt_that_never_fits_is_refused_at_once_and_nobody_waits_behind_it(small_field: Field) -> None:
    references = [small_field.reference(prompt, 20) for prompt in SMALL]
    with pytest.raises(InvalidRequest, match=f"the prompt has 200 tokens, and a sequence holds {CAPACITY} here"):
        small_field.ask(prompt_of(200), 10)
    answers = together([partial(small_field.ask, prompt, 20) for prompt in SMALL])
    assert [answer.token_ids for answer in answers] == references


def test_F16_answer_that_outgrows_the_pool_ends_with_length(small_field: Field) -> None:
    completion = small_field.ask(prompt_of(100), 500)
    assert completion.finish.reason is FinishReason.LENGTH
    assert len(completion.token_ids) == CAPACITY - 100
    state = small_field.bus.status()
    assert (state.running, state.waiting, state.pool.held) == (0, 0, 0)


def test_F16_edge_of_the_pool(small_field: Field) -> None:
    last = small_field.ask(prompt_of(CAPACITY - 1), 5)
    assert (last.finish.reason, len(last.token_ids)) == (FinishReason.LENGTH, 1)
    for length in (CAPACITY, CAPACITY + 1):
        with pytest.raises(InvalidRequest, match=f"a sequence holds {CAPACITY} here"):
            small_field.ask(prompt_of(length), 1)


def test_F16_two_that_fit_one_after_the_other_both_end(small_field: Field) -> None:
    prompts = [[first, *prompt_of(99)] for first in (251, 252)]
    references = [small_field.reference(prompt, CAPACITY - 100) for prompt in prompts]
    answers = together([partial(small_field.ask, prompt, 500) for prompt in prompts])
    assert [answer.token_ids for answer in answers] == references


def test_F16_pool_that_is_smaller_when_both_services_come_back(tmp_path: Path) -> None:
    """Who fits goes on with the same tokens; who never will again is told, and does not stay in the queue."""
    model = write_tiny(tmp_path / "tiny", max_model_len=1024)
    with (
        running_executor(model, tmp_path / "executor.log", "--num-blocks", 64, "--max-sequences", 1) as executor,
        scheduler_field(model, tmp_path / "bus", executor, "--journal", tmp_path / "journal.db") as field,
    ):
        small, last = SMALL[:2], prompt_of(CAPACITY - 20)
        references = [field.reference(prompt, 100) for prompt in (*small, last)]
        with field.paused():
            first, large = field.start(small[0], 100), field.start(prompt_of(300), 700)
            behind = [field.start(prompt, 100) for prompt in (small[1], last)]
        first.read_some(3)
        executor.kill()
        field.bus.scheduler.kill()
        executor.flags = (*executor.flags, "--num-blocks", "8")
        executor.restart()
        field.bus.scheduler.restart()
        answers = together([ride.read for ride in (first, *behind)])
        assert [answer.token_ids for answer in answers[:2]] == references[:2]
        assert answers[2].token_ids == references[2][:20], "cut to what fits now"
        assert answers[2].finish.reason is FinishReason.LENGTH
        with pytest.raises(InvalidRequest, match=f"the prompt has 300 tokens, and a sequence holds {CAPACITY} here"):
            large.read()
        field.check()
