"""Penalties, bans, minimum lengths and log-probabilities, preempted, on prefix hits and at the edges of chunks."""

from __future__ import annotations

import uuid

import pytest

from tests.e2e.field_cases.field import Field, computed_when_preempted, together
from tests.e2e.field_cases.parameters import PARAMETERS, told

LENGTH = 240


def prompt_of(length: int) -> list[int]:
    return [(13 * length + 5 * position) % 250 for position in range(length)]


def test_F23_six_of_a_kind_each_are_preempted_and_say_the_same(tight_field: Field) -> None:
    prompts = [[seat, 3, 4] for seat in range(10, 16)]
    asked = list(zip(prompts, PARAMETERS.values(), strict=True))
    references = [told(tight_field.ask(prompt, LENGTH, cache_salt=uuid.uuid4().hex, **each)) for prompt, each in asked]
    preempted: set[int] = set()
    for turn in range(6):  # the youngest are victims, so another one every time; two of the six end early
        if len(preempted) >= 4:
            break
        order = asked[turn:] + asked[:turn]
        expected = references[turn:] + references[:turn]
        since = len(tight_field.bus.plans())
        with tight_field.paused():
            rides = [tight_field.start(prompt, LENGTH, cache_salt=uuid.uuid4().hex, **each) for prompt, each in order]
        assert [told(answer) for answer in together([ride.read for ride in rides])] == expected
        tight_field.bus.wait_idle()
        victims = computed_when_preempted(tight_field.bus.plans()[since:])
        first = min(sequence for plan in tight_field.bus.plans()[since:] for sequence, _ in plan["new"])
        preempted |= {(sequence - first + turn) % 6 for sequence in victims}
    assert len(preempted) >= 4


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_F23_chunks_and_prefix_hits_change_nothing(tiny_field: Field, tight_field: Field, length: int) -> None:
    """C = 512 and C = 16; cold, then again on a hit, which there is none of where the prompt is to be scored."""
    prompt = prompt_of(length)
    for name, options in PARAMETERS.items():
        salt = uuid.uuid4().hex
        cold = tiny_field.ask(prompt, 20, cache_salt=salt, **options)
        again = tiny_field.ask(prompt, 20, cache_salt=salt, **options)
        in_chunks = tight_field.ask(prompt, 20, cache_salt=salt, **options)
        assert told(again) == told(cold) == told(in_chunks), name
        assert again.finish.usage.cached_tokens == (0 if name == "logprobs" else length - 1)


def test_F23_one_batch_of_all_is_what_each_is_alone(tiny_field: Field) -> None:
    prompt = prompt_of(40)
    alone = [told(tiny_field.ask(prompt, 40, cache_salt=uuid.uuid4().hex, **each)) for each in PARAMETERS.values()]
    with tiny_field.paused():
        rides = [
            tiny_field.start(prompt, 40, cache_salt=uuid.uuid4().hex, **each) for each in [*PARAMETERS.values(), {}]
        ]
    assert [told(answer) for answer in together([ride.read for ride in rides])][:-1] == alone
