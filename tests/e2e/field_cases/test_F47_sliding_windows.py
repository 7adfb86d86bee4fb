"""Sliding windows of W keys, W no multiple of a block: tokens are those of a dense mask, for as long as an answer goes.

Blocks that no window sees any more stay, so that a later prefix hit finds them as they were.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import write_windowed
from tests.e2e.field_cases.field import Field, computed_when_preempted, running_field, together
from tests.windows import ALTERNATING, W, greedy

LENGTHS = [W - 1, W, W + 1, 3 * W]
PROMPTS = [[(7 * length + 3 * position) % 250 for position in range(length)] for length in LENGTHS]
SIX = [[seat, *PROMPTS[-1][1:]] for seat in range(10, 16)]
OUTPUT = 3 * W

Answers = dict[tuple[int, ...], tuple[int, ...]]


@pytest.fixture(scope="module", params=[(None, 7), (ALTERNATING, W)], ids=["every layer", "alternating"])
def windowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A model, L = 256, and how many tokens a step computes at most."""
    layer_types, chunk = request.param
    folder = tmp_path_factory.mktemp("windowed")
    return write_windowed(folder, window=W, layer_types=layer_types, max_model_len=256), chunk


@pytest.fixture(scope="module")
def answers(windowed: tuple[Path, int]) -> Answers:
    """Prompt -> what a dense mask of exactly W keys gives."""
    prompts = [*PROMPTS, *SIX]
    return dict(zip(map(tuple, prompts), map(tuple, greedy(windowed[0], prompts, OUTPUT)), strict=True))


@pytest.fixture(scope="module")
def windowed_session(windowed: tuple[Path, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    model, chunk = windowed
    flags = ("--num-blocks", 24, "--max-step-tokens", chunk, "--max-sequences", 6)
    with running_field(model, tmp_path_factory.mktemp("windowed-bus"), executor=flags) as field:
        yield field


@pytest.fixture
def windowed_field(windowed_session: Field) -> Iterator[Field]:
    """P = 24, S = 6, and chunks of 7 or of W tokens."""
    yield windowed_session
    windowed_session.check()


@pytest.mark.parametrize("prompt", PROMPTS, ids=LENGTHS)
def test_F47_answers_are_those_of_a_dense_mask(windowed_field: Field, answers: Answers, prompt: list[int]) -> None:
    assert windowed_field.reference(prompt, OUTPUT) == answers[tuple(prompt)]


@pytest.mark.parametrize("prompt", PROMPTS, ids=LENGTHS)
def test_F47_prefix_hits_past_the_window(windowed_field: Field, answers: Answers, prompt: list[int]) -> None:
    salt, answer = uuid.uuid4().hex, answers[tuple(prompt)]
    windowed_field.ask(prompt, OUTPUT, cache_salt=salt)
    for turn in (0, W - 1, W + 1, OUTPUT - 1):
        repeat = windowed_field.ask([*prompt, *answer[:turn]], OUTPUT - turn, cache_salt=salt)
        assert repeat.token_ids == answer[turn:]
        assert repeat.finish.usage.cached_tokens == len(prompt) + turn - 1


def test_F47_preempted_past_the_window(windowed_field: Field, answers: Answers) -> None:
    since = len(windowed_field.bus.plans())
    with windowed_field.paused():
        rides = [windowed_field.start(prompt, OUTPUT, cache_salt=uuid.uuid4().hex) for prompt in SIX]
    for prompt, answer in zip(SIX, together([ride.read for ride in rides]), strict=True):
        assert answer.token_ids == answers[tuple(prompt)]
    windowed_field.bus.wait_idle()
    lost = computed_when_preempted(windowed_field.bus.plans()[since:])
    assert lost and max(computed for places in lost.values() for computed in places) > 3 * W
