"""Log-probabilities of a prompt: all of them, whatever the cache holds and however the prompt is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from citybus import Completion
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import Field, running_field, together
from tests.e2e.field_cases.test_F12_logprobs import dense

PROMPT = [(7 * position + 3) % 250 for position in range(100)]


@pytest.fixture(scope="module")
def uneven_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("uneven")
    model = write_tiny(folder / "tiny", max_model_len=2048)
    flags = ("--num-blocks", 128, "--max-step-tokens", 99)
    with running_field(model, folder / "bus", executor=flags) as field:
        yield field


@pytest.fixture
def uneven_field(uneven_session: Field) -> Iterator[Field]:
    """C = 99: of 100 tokens the last chunk has one. The weights are TINY's, and L = 2048."""
    yield uneven_session
    uneven_session.check()


def score(field: Field, prompt: list[int] = PROMPT, **options: object) -> Completion:
    return field.ask(prompt, 3, prompt_logprobs=2, **options)


def test_F25_cold_hit_and_chunks_give_the_numbers_of_a_dense_pass(
    tiny: Path, tiny_field: Field, tight_field: Field, uneven_field: Field
) -> None:
    expected = dense(tiny, PROMPT)
    tiny_field.ask(PROMPT, 1)
    assert tiny_field.ask(PROMPT, 1).finish.usage.cached_tokens == len(PROMPT) - 1
    answers = [score(field) for field in (tiny_field, tiny_field, tight_field, uneven_field)]
    for answer in answers:
        assert answer.prompt is not None
        assert answer.prompt.token_ids == tuple(PROMPT)
        assert answer.prompt.text == ""
        assert answer.finish.usage.cached_tokens == 0
        assert len(answer.prompt.logprobs) == len(PROMPT)
        first, *others = answer.prompt.logprobs
        assert (first.logprob, first.rank, first.top_ids) == (None, 0, ())
        for position, each in enumerate(others, start=1):
            before = expected[position - 1]
            assert each.logprob == pytest.approx(before[PROMPT[position]].item(), abs=1e-4)
            assert each.top_ids == tuple(before.topk(2).indices.tolist())
        assert answer.prompt == answers[0].prompt


def test_F25_a_request_that_asks_for_nothing_finds_what_one_that_asks_has_computed(tiny_field: Field) -> None:
    score(tiny_field, cache_salt="F25")
    assert tiny_field.ask(PROMPT, 1, cache_salt="F25").finish.usage.cached_tokens == len(PROMPT) - 1


def test_F25_neighbours_in_any_order_change_nothing(tight_field: Field) -> None:
    prompts = [PROMPT, PROMPT[:50], [9, *PROMPT], PROMPT[:17]]
    alone = [score(tight_field, prompt).prompt for prompt in prompts]
    for turn in range(2):
        order = list(range(4))[:: 1 - 2 * turn]
        with tight_field.paused():
            rides = [tight_field.start(prompts[each], 3, prompt_logprobs=2) for each in order]
        answers = together([ride.read for ride in rides])
        assert [answer.prompt for answer in answers] == [alone[each] for each in order]


def test_F25_nothing_comes_before_the_prompt_is_whole(tight_field: Field) -> None:
    ride = tight_field.start(PROMPT, 3, prompt_logprobs=0, logprobs=0, echo=True)
    answer = ride.read()
    first, *others = ride.deltas
    assert first.prompt is not None and first.first_index == 0 and first.token_ids
    assert all(delta.prompt is None and delta.token_ids for delta in others)
    assert len(answer.logprobs) == 3


def test_F25_a_prompt_of_one_token(tiny_field: Field) -> None:
    answer = score(tiny_field, [7])
    assert answer.prompt is not None
    assert [each.logprob for each in answer.prompt.logprobs] == [None]


def test_F25_a_long_prompt(tiny: Path, uneven_field: Field) -> None:
    prompt = [(7 * position + position // 250) % 250 for position in range(1500)]
    answer, expected = score(uneven_field, prompt), dense(tiny, prompt)
    assert answer.prompt is not None
    assert len(answer.prompt.logprobs) == len(prompt)
    for position, each in enumerate(answer.prompt.logprobs[1:], start=1):
        assert each.logprob == pytest.approx(expected[position - 1][prompt[position]].item(), abs=2e-3)
    assert answer.finish.usage.prompt_tokens == len(prompt)
