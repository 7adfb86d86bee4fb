"""What of log-probabilities is news, and what must be computed for their sake."""

from __future__ import annotations

import sys

import pytest

from common.logprobs import KnownLogprobs, TokenLogprobs
from common.step import Sampling
from scheduler_svc.core.scoring import Scored, Scoring

NUM_PROMPT = 5


def score(position: int) -> TokenLogprobs:
    return TokenLogprobs(-float(position), 1)


def part(first: int, count: int) -> KnownLogprobs:
    return KnownLogprobs(1, first, tuple(score(position) for position in range(first, first + count)))


def news(first: int, count: int) -> Scored:
    return Scored(first, part(first, count).tokens)


@pytest.mark.parametrize(
    ("sampling", "skippable"),
    [
        (Sampling(), sys.maxsize),
        (Sampling(num_logprobs=0), NUM_PROMPT - 1),
        (Sampling(num_prompt_logprobs=0), 0),
        (Sampling(num_logprobs=3, num_prompt_logprobs=2), 0),
    ],
)
def test_what_need_not_be_computed_at_first(sampling: Sampling, skippable: int) -> None:
    assert Scoring(sampling, NUM_PROMPT).num_skippable == skippable


def test_a_prompt_in_chunks_and_then_again() -> None:
    scoring = Scoring(Sampling(num_prompt_logprobs=0), NUM_PROMPT)
    assert scoring.take(part(1, 2)) == news(1, 2)
    assert scoring.num_skippable == 2
    assert scoring.take(part(1, 2)) is None
    assert scoring.take(part(2, 3)) == news(3, 2)
    assert scoring.num_skippable == sys.maxsize


def test_an_answer_goes_on_where_the_prompt_ends() -> None:
    scoring = Scoring(Sampling(num_logprobs=0, num_prompt_logprobs=0), NUM_PROMPT)
    assert scoring.take(part(1, 4)) == news(1, 4)
    assert scoring.take(part(NUM_PROMPT, 1)) == news(NUM_PROMPT, 1)
    assert scoring.num_skippable == NUM_PROMPT


def test_what_comes_behind_a_gap_is_left_out() -> None:
    scoring = Scoring(Sampling(num_logprobs=0), NUM_PROMPT)
    assert scoring.take(part(NUM_PROMPT + 1, 1)) is None
    assert scoring.take(part(NUM_PROMPT, 2)) == news(NUM_PROMPT, 2)
