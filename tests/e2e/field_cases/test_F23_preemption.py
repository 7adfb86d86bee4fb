"""Sequences that lose their blocks and are computed again: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from citybus import Completion, FinishReason
from tests.checkpoints import follow, write_chain
from tests.e2e.field_cases.conftest import EMOJI
from tests.e2e.field_cases.field import Field, computed_when_preempted, running_field, together

SIX = [[seat, 3, 4] for seat in range(10, 16)]
LETTERS = b"abcdefghijklmnop"


def preemptions(field: Field, since: int) -> dict[int, list[int]]:
    """Sequence -> computed tokens at each preemption, in the plans from number `since` on."""
    field.bus.wait_idle()
    return computed_when_preempted(field.bus.plans()[since:])


def ride(field: Field, prompts: list[list[int]], lengths: list[int], **options: Any) -> list[Completion]:
    """All at the same time, boarding in their order, each on a cold cache."""
    with field.paused():
        rides = [
            field.start(prompt, length, cache_salt=uuid.uuid4().hex, **options)
            for prompt, length in zip(prompts, lengths, strict=True)
        ]
    return together([ride.read for ride in rides])


def test_F23_two_or_more_of_six_are_preempted_and_lose_nothing(tight_field: Field) -> None:
    references = [tight_field.reference(prompt, 200) for prompt in SIX]
    since, generated = len(tight_field.bus.plans()), tight_field.metric("generation_tokens_total")
    answers = ride(tight_field, SIX, [200] * 6)
    assert [answer.token_ids for answer in answers] == references
    assert len(preemptions(tight_field, since)) >= 2
    assert tight_field.metric("generation_tokens_total") - generated == 6 * 200


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 7}, {"temperature": 0.8, "seed": 9, "top_k": 20}])
def test_F23_one_that_is_preempted_three_times(tight_field: Field, options: dict[str, Any]) -> None:
    lengths = [107, 107, 170, 250, 250, 240]
    references = [tight_field.reference(SIX[seat], lengths[seat], **options) for seat in range(6)]
    since = len(tight_field.bus.plans())
    answers = ride(tight_field, SIX, lengths, **options)
    assert [answer.token_ids for answer in answers] == references
    assert max(map(len, preemptions(tight_field, since).values())) >= 3


def test_F23_at_every_place_in_a_block(tight_field: Field) -> None:
    """The victim's prompt is of another length every time, until it was caught at the edges of a block."""
    elders = [[seat, *range(30, 40)] for seat in range(10, 15)]
    references = {tuple(prompt): tight_field.reference(prompt, 100) for prompt in elders}
    caught: set[int] = set()
    for length in (10 + 2 * turn % 9 for turn in range(72)):
        victim = tuple(range(20, 20 + length))
        if victim not in references:
            references[victim] = tight_field.reference(victim, 100)
        since, prompts = len(tight_field.bus.plans()), [*elders, list(victim)]
        answers = ride(tight_field, prompts, [100] * 6)
        assert [answer.token_ids for answer in answers] == [references[tuple(prompt)] for prompt in prompts]
        lost = preemptions(tight_field, since)
        assert lost
        caught |= {computed[0] % 16 for computed in lost.values()}
        if caught >= {0, 1, 15}:
            break
    assert caught >= {0, 1, 15}


def test_F23_right_after_a_prefill_of_many_chunks(tight_field: Field) -> None:
    prompts = [[seat] + [3] * 100 for seat in range(10, 16)]
    references = [tight_field.reference(prompt, 100) for prompt in prompts]
    since = len(tight_field.bus.plans())
    answers = ride(tight_field, prompts, [100] * 6)
    assert [answer.token_ids for answer in answers] == references
    lost = preemptions(tight_field, since)
    assert lost and all(computed >= 16 for places in lost.values() for computed in places)


@pytest.fixture(scope="module")
def cycle_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("cycle-bus")
    script = {**follow(*EMOJI, EMOJI[0]), **follow(*LETTERS, LETTERS[0])}
    model = write_chain(folder / "cycle", script, max_model_len=256)
    flags = ("--num-blocks", 40, "--max-step-tokens", 16, "--max-sequences", 6)
    with running_field(model, folder / "bus", executor=flags) as field:
        yield field


@pytest.fixture
def cycle_field(cycle_session: Field) -> Iterator[Field]:
    """CHAIN that says an emoji, or the letters, again and again; as tight as `tight_field`."""
    yield cycle_session
    cycle_session.check()


def test_F23_characters_cut_by_a_preemption_are_whole(cycle_field: Field) -> None:
    prompts = [[*b"xyz"[: seat % 3], EMOJI[3]] for seat in range(6)]
    since = len(cycle_field.bus.plans())
    answers = ride(cycle_field, prompts, [240] * 6)
    assert [answer.text for answer in answers] == ["😀" * 60] * 6
    assert len(preemptions(cycle_field, since)) >= 2


def test_F23_stop_text_that_is_half_matched_through_preemptions(cycle_field: Field) -> None:
    prompts = [[*b"xyz"[: seat % 3], LETTERS[-1]] for seat in range(6)]
    since = len(cycle_field.bus.plans())
    answers = ride(cycle_field, prompts, [240] * 6, stop=[LETTERS.decode() * 13, "bcdeX"])
    assert {(answer.text, answer.finish.reason, len(answer.token_ids)) for answer in answers} == {
        ("", FinishReason.STOP, 13 * 16)
    }
    answers = ride(cycle_field, prompts, [240] * 6, stop=["bcdeX", "opaX"])
    assert [answer.text for answer in answers] == [LETTERS.decode() * 15] * 6
    assert len(preemptions(cycle_field, since)) >= 4
