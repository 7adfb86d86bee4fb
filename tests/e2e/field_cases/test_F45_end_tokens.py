"""End tokens of the configs, all of them: they end an answer, unless they are ignored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from citybus import FinishReason
from tests.checkpoints import follow, write_chain
from tests.e2e.field_cases.field import Field, running_field, together

FIRST_END, SECOND_END = ord("$"), ord("#")
"""The config names the first, the generation config both; the tokenizer's own end token is another one."""

SCRIPT = {
    **follow(*b"abcde", SECOND_END, *b"fghij", FIRST_END, *b"klmnopqrstuvwxyz", ord("a")),
    **follow(*b"01234567890"),
}


@pytest.fixture(scope="module")
def two_ends_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("two-ends")
    ends = [FIRST_END, SECOND_END]
    model = write_chain(folder / "chain", SCRIPT, max_model_len=64, eos=FIRST_END, generation_eos=ends)
    with running_field(model, folder / "bus", executor=("--num-blocks", 64)) as field:
        yield field


@pytest.fixture
def two_ends(two_ends_session: Field) -> Iterator[Field]:
    yield two_ends_session
    two_ends_session.check()


@pytest.mark.parametrize(
    ("prompt", "text", "end"), [(b"a", "bcde", SECOND_END), (b"f", "ghij", FIRST_END)], ids=["second", "first"]
)
def test_F45_each_end_token_ends_the_answer_and_is_not_in_its_text(
    two_ends: Field, prompt: bytes, text: str, end: int
) -> None:
    answer = two_ends.client.complete(token_ids=list(prompt), temperature=0)
    assert (answer.text, answer.token_ids[-1], len(answer.token_ids)) == (text, end, 5)
    assert (answer.finish.reason, answer.finish.stop_token_id) == (FinishReason.STOP, end)


def test_F45_ignored_end_tokens_end_nothing(two_ends: Field) -> None:
    answer = two_ends.client.complete(token_ids=[ord("a")], temperature=0, ignore_eos=True, max_tokens=20)
    assert answer.finish.reason is FinishReason.LENGTH
    assert bytes(answer.token_ids) == b"bcde#fghij$klmnopqrs"


def test_F45_own_stop_token_still_ends_where_the_models_are_ignored(two_ends: Field) -> None:
    options = {"temperature": 0, "ignore_eos": True, "max_tokens": 20, "stop_token_ids": [ord("h")]}
    answer = two_ends.client.complete(token_ids=[ord("a")], **options)  # type: ignore[arg-type]
    assert (answer.finish.reason, answer.finish.stop_token_id) == (FinishReason.STOP, ord("h"))
    assert answer.text == "bcde#fg", "an end token that is ignored is text like any other"


def test_F45_unequal_lengths_share_a_batch_without_a_pad_token(two_ends: Field) -> None:
    prompts = [[ord("x")] * length + [ord("a")] for length in (0, 1, 15, 16, 17, 40)]
    with two_ends.paused():
        rides = [two_ends.start(prompt, 9, ignore_eos=False) for prompt in prompts]
    assert [answer.text for answer in together([ride.read for ride in rides])] == ["bcde"] * len(prompts)
