"""A request with a seed gives the same tokens, whoever else is in its batch and whatever happens to it."""

from __future__ import annotations

import uuid
from typing import Any

from citybus import Completion
from tests.e2e.field_cases.field import Field, Ride, computed_when_preempted, together

RUNS = 10
PROMPT = [position * 7 % 250 for position in range(33)]
SEEDED: dict[str, Any] = {"temperature": 0.8, "seed": 42}
FREE: dict[str, Any] = {"temperature": 0.8}
TOKENS = 32


def seeded(field: Field, **options: Any) -> Ride:
    """R, on a cold cache unless a salt is given."""
    return field.start(PROMPT, TOKENS, **({"cache_salt": uuid.uuid4().hex} | SEEDED | options))


def neighbour(field: Field, seat: int, num_tokens: int, **options: Any) -> Ride:
    return field.start([seat, *range(50, 60)], num_tokens, cache_salt=uuid.uuid4().hex, **options)


def beside(field: Field, *neighbours: dict[str, Any]) -> Completion:
    """R, in one batch with its neighbours from its first token on."""
    with field.paused():
        others = [neighbour(field, seat, 2 * TOKENS, **options) for seat, options in enumerate(neighbours)]
        ride = seeded(field)
    answer, *_ = together([each.read for each in (ride, *others)])
    return answer


def test_F06_beside_an_unseeded_neighbour(tiny_field: Field) -> None:
    alone = tiny_field.reference(PROMPT, TOKENS, **SEEDED)
    assert [beside(tiny_field, FREE).token_ids for _ in range(RUNS)] == [alone] * RUNS


def test_F06_beside_seven_seeded_neighbours(tiny_field: Field) -> None:
    alone = tiny_field.reference(PROMPT, TOKENS, **SEEDED)
    neighbours = [{"temperature": 0.8, "seed": seed} for seed in (42, *range(6))]
    assert [beside(tiny_field, *neighbours).token_ids for _ in range(RUNS)] == [alone] * RUNS


def test_F06_beside_a_neighbour_with_filters_and_penalties(tiny_field: Field) -> None:
    alone = tiny_field.reference(PROMPT, TOKENS, **SEEDED)
    filters = FREE | {"top_k": 5, "top_p": 0.7, "repetition_penalty": 1.5, "presence_penalty": 1.0, "logprobs": 3}
    assert [beside(tiny_field, filters).token_ids for _ in range(RUNS)] == [alone] * RUNS


def test_F06_boarding_while_others_decode(tiny_field: Field) -> None:
    alone = tiny_field.reference(PROMPT, TOKENS, **SEEDED)
    for _ in range(RUNS):
        others = [neighbour(tiny_field, seat, 100, **FREE) for seat in range(3)]
        for other in others:
            other.read_some(5)
        ride = seeded(tiny_field)
        answer, *_ = together([each.read for each in (ride, *others)])
        assert answer.token_ids == alone


def test_F06_preempted(tight_field: Field) -> None:
    """Six of 110 tokens do not fit to their ends, and the youngest gives way."""
    prompt, length = [15, 3, 4], 110
    alone = tight_field.reference(prompt, length, **SEEDED)
    for _ in range(RUNS):
        tight_field.bus.wait_idle()
        since, first = len(tight_field.bus.plans()), tight_field.bus.status().totals.accepted + 1
        salts = [uuid.uuid4().hex for _ in range(6)]
        with tight_field.paused():
            elders = [tight_field.start([seat, 3, 4], length, cache_salt=salts[seat], **FREE) for seat in range(5)]
            ride = tight_field.start(prompt, length, cache_salt=salts[5], **SEEDED)
        answer, *_ = together([each.read for each in (ride, *elders)])
        assert answer.token_ids == alone
        tight_field.bus.wait_idle()
        assert first + 5 in computed_when_preempted(tight_field.bus.plans()[since:]), "it was preempted"


def test_F06_on_a_prefix_hit(tiny_field: Field) -> None:
    salt = uuid.uuid4().hex
    alone = tiny_field.reference(PROMPT, TOKENS, **SEEDED, cache_salt=salt)
    for _ in range(RUNS):
        answer = seeded(tiny_field, cache_salt=salt).read()
        assert answer.token_ids == alone
        assert answer.finish.usage.cached_tokens == len(PROMPT) - 1


def test_F06_without_a_seed_each_answer_is_drawn_anew(tiny_field: Field) -> None:
    answers = {tiny_field.ask(PROMPT, 8, **FREE).token_ids for _ in range(20)}
    assert len(answers) > 1
