"""A seeded request says the same in any company, and unseeded ones differ."""

from __future__ import annotations

import uuid
from typing import Any

from tests.e2e.field_cases.field import Field, computed_when_preempted, together

PROMPT = [21, 22, 23]
SEEDED: dict[str, Any] = {"temperature": 0.8, "seed": 42}
UNSEEDED: dict[str, Any] = {"temperature": 0.8}
NEIGHBOURS: list[list[dict[str, Any]]] = [
    [UNSEEDED],
    [UNSEEDED | {"seed": seat} for seat in range(7)],
    [UNSEEDED | {"top_k": 5, "repetition_penalty": 1.5, "presence_penalty": 1.0, "logprobs": 3}],
]
RUNS = 3


def test_F06_neighbours_do_not_change_a_seeded_answer(tiny_field: Field) -> None:
    alone = tiny_field.reference(PROMPT, 32, **SEEDED)
    for company in NEIGHBOURS:
        for _ in range(RUNS):
            with tiny_field.paused():
                others = [tiny_field.start([31, seat], 40, **options) for seat, options in enumerate(company)]
                ride = tiny_field.start(PROMPT, 32, cache_salt=uuid.uuid4().hex, **SEEDED)
            first, *_ = together([each.read for each in [ride, *others]])
            assert first.token_ids == alone
    assert tiny_field.ask(PROMPT, 32, **SEEDED).token_ids == tiny_field.ask(PROMPT, 32, **SEEDED).token_ids == alone


def test_F06_arriving_while_others_decode(tiny_field: Field) -> None:
    alone = tiny_field.reference(PROMPT, 32, **SEEDED)
    others = [tiny_field.start([41, seat], 200, **UNSEEDED) for seat in range(3)]
    for other in others:
        other.read_some(1)
    answer = tiny_field.ask(PROMPT, 32, cache_salt=uuid.uuid4().hex, **SEEDED)
    together([other.read for other in others])
    assert answer.token_ids == alone


def test_F06_preempted(tight_field: Field) -> None:
    alone = tight_field.reference(PROMPT, 150, **SEEDED)
    since = len(tight_field.bus.plans())
    with tight_field.paused():
        others = [tight_field.start([51, seat], 150, **UNSEEDED) for seat in range(5)]
        ride = tight_field.start(PROMPT, 150, cache_salt=uuid.uuid4().hex, **SEEDED)
    answer, *_ = together([each.read for each in [ride, *others]])
    tight_field.bus.wait_idle()
    assert answer.token_ids == alone
    assert computed_when_preempted(tight_field.bus.plans()[since:])


def test_F06_without_a_seed_answers_differ(tiny_field: Field) -> None:
    assert len({tiny_field.ask(PROMPT, 8, **UNSEEDED).token_ids for _ in range(20)}) > 1
