"""Prompts that are cached whole, at every length around the block boundaries.

The prefix cache works to the token: of a prompt of n tokens that was computed before, n - 1 are found, and the last one
is computed again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.field_cases.field import Field, running_field, together

OUTPUT = 18
AT_ONCE = 4


@pytest.fixture(scope="module")
def fields(tiny: Path, tiny_session: Field, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Field]]:
    """Block size -> a bus with it."""
    folder = tmp_path_factory.mktemp("block-sizes")
    ones = ("--block-size", 1, "--num-blocks", 1024)
    wide = ("--block-size", 32, "--num-blocks", 256)
    with (
        running_field(tiny, folder / "1", executor=ones) as of_1,
        running_field(tiny, folder / "32", executor=wide) as of_32,
    ):
        yield {1: of_1, 16: tiny_session, 32: of_32}


@pytest.fixture(params=[1, 16, 32])
def sized_field(request: pytest.FixtureRequest, fields: dict[int, Field]) -> Iterator[tuple[Field, int]]:
    """A bus, and its block size."""
    yield fields[request.param], request.param
    fields[request.param].check()


def prompt_of(length: int) -> list[int]:
    return [(11 * length + 7 * position) % 250 for position in range(length)]


class Prompt:
    """A prompt that was computed under a salt of its own, alone, and what is to come of it and its variants."""

    def __init__(self, field: Field, length: int) -> None:
        self.field = field
        self.salt = uuid.uuid4().hex
        prompt = prompt_of(length)
        longer, changed = [*prompt, 251], [*prompt[:-1], 252]
        cold = field.reference(prompt, OUTPUT, cache_salt=self.salt)
        self.variants = (
            (prompt, cold, length - 1),
            (longer, field.reference(longer, OUTPUT), length),
            (changed, field.reference(changed, OUTPUT), length - 1),
            (prompt, cold, length - 1),
        )

    def check(self) -> None:
        """Again, with a token more, with another last token, and again: each as on a cold cache."""
        for tokens, output, cached in self.variants:
            answer = self.field.ask(tokens, OUTPUT, cache_salt=self.salt)
            assert answer.token_ids == output
            assert answer.finish.usage.cached_tokens == cached


def lengths_for(block_size: int) -> list[int]:
    """Up to three blocks and one token, those around the boundaries; all, where every length is one."""
    lengths = range(1, max(3 * block_size, 8) + 2)
    return [length for length in lengths if (length + 2) % block_size <= 4]


def test_F21_lengths_around_the_boundaries_of_three_blocks(sized_field: tuple[Field, int]) -> None:
    field, block_size = sized_field
    lengths = lengths_for(block_size)
    for start in range(0, len(lengths), AT_ONCE):
        prompts = [Prompt(field, length) for length in lengths[start : start + AT_ONCE]]
        together([prompt.check for prompt in prompts])


def test_F21_prompt_that_goes_on_from_an_answer(sized_field: tuple[Field, int]) -> None:
    field, _ = sized_field
    prompt, salt = prompt_of(7), uuid.uuid4().hex
    output = field.reference(prompt, 40, cache_salt=salt)
    for turn in (*range(7, 11), *range(14, 19), *range(23, 28), 39):
        answer = field.ask([*prompt, *output[:turn]], 40 - turn, cache_salt=salt)
        assert answer.token_ids == output[turn:]
        assert answer.finish.usage.cached_tokens == len(prompt) + turn - 1


@pytest.mark.parametrize("length", [15, 16, 17, 33])
def test_F21_hits_do_not_decay(tiny_field: Field, length: int) -> None:
    prompt, salt = prompt_of(length), uuid.uuid4().hex
    cold = tiny_field.reference(prompt, OUTPUT, cache_salt=salt)
    for _ in range(10):
        answer = tiny_field.ask(prompt, OUTPUT, cache_salt=salt)
        assert (answer.token_ids, answer.finish.usage.cached_tokens) == (cold, length - 1)


def test_F21_a_repeat_computes_one_token(tiny_field: Field) -> None:
    prompt, salt = prompt_of(48), uuid.uuid4().hex
    tiny_field.ask(prompt, 1, cache_salt=salt)
    tiny_field.bus.wait_idle()
    before = len(tiny_field.bus.plans())
    tiny_field.ask(prompt, 1, cache_salt=salt)
    tiny_field.bus.wait_idle()
    (boarding,) = [plan["new"] for plan in tiny_field.bus.plans()[before:] if plan["new"]]
    assert [num_tokens for _, num_tokens in boarding] == [1]
