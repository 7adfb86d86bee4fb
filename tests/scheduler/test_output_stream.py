"""One request's stream: what its reader gets, whatever the pace of loop and reader."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Sequence

import pytest

from common.errors import CitybusError, Unavailable
from scheduler_svc.core.request import FinishReason, Outcome, SequenceUpdate
from scheduler_svc.detokenizer import Detokenizer
from scheduler_svc.output_stream import Delta, OutputStream, TextStop
from scheduler_svc.token_bytes import TokenBytes
from tests.scheduler.text_folders import CONTROL, EOS, IM_END, byte_level

BYTES = TokenBytes(byte_level())
DONE = Outcome(FinishReason.LENGTH, 3, 0, 0, 0, 0.1, 0.2, 0.5)


class Counter:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.outcomes: list[Outcome] = []

    def on_tokens(self, count: int) -> None:
        self.tokens.append(count)

    def on_outcome(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class Harness:
    """A stream, the loop that pushes into it and the reader."""

    def __init__(self, stops: Sequence[str] = (), hidden: frozenset[int] = frozenset({EOS})) -> None:
        self.counter = Counter()
        self.stream = OutputStream(Detokenizer(BYTES, (), hidden), stops, self.counter)
        self._index = 0

    def push(self, *token_ids: int, **ending: object) -> TextStop | None:
        """Push tokens, with an outcome of these fields where any are given."""
        index, self._index = self._index, self._index + len(token_ids)
        counted = {"num_output_tokens": self._index, **ending}
        outcome = dataclasses.replace(DONE, **counted) if ending else None  # type: ignore[arg-type]
        return self.stream.push(SequenceUpdate(1, index, token_ids, outcome))

    async def take(self) -> tuple[int, list[int], str]:
        """The next delta, which is not the last."""
        delta = await asyncio.wait_for(self.stream.next(), 5)
        assert delta.outcome is None
        return delta.first_index, list(delta.token_ids), delta.text

    async def last(self) -> Delta:
        delta = await asyncio.wait_for(self.stream.next(), 5)
        assert delta.outcome is not None
        return delta

    async def text(self) -> tuple[str, Delta]:
        """The whole text, and the last delta."""
        text = ""
        while True:
            delta = await asyncio.wait_for(self.stream.next(), 5)
            text += delta.text
            if delta.outcome is not None:
                return text, delta


async def test_reader_that_keeps_up_gets_every_token_by_itself() -> None:
    harness = Harness()
    deltas = []
    for token in b"abc":
        harness.push(token)
        deltas.append(await harness.take())
    assert deltas == [(0, [97], "a"), (1, [98], "b"), (2, [99], "c")]
    assert harness.counter.tokens == [1, 1, 1]


async def test_slow_reader_gets_one_delta_of_all_that_gathered() -> None:
    harness = Harness()
    harness.push(*b"a")
    assert await harness.take() == (0, [97], "a")
    for token in b"bcd":
        harness.push(token)
    assert await harness.take() == (1, [98, 99, 100], "bcd")
    harness.push(*b"e")
    harness.push(reason=FinishReason.LENGTH)
    last = await harness.last()
    assert (last.first_index, list(last.token_ids), last.text) == (4, [101], "e")


async def test_reader_waits_for_news() -> None:
    harness = Harness()
    waiting = asyncio.create_task(harness.take())
    await asyncio.sleep(0)
    harness.push()
    await asyncio.sleep(0)
    assert not waiting.done()
    harness.push(*b"a")
    assert await waiting == (0, [97], "a")


async def test_slow_reader_holds_four_bytes_a_token_and_its_text() -> None:
    harness = Harness()
    harness.push(*b"ab" * 50_000)
    assert sys.getsizeof(harness.stream._token_ids) < 5 * 100_000
    assert await harness.take() == (0, list(b"ab" * 50_000), "ab" * 50_000)


async def test_incomplete_character_waits_for_its_end() -> None:
    harness = Harness()
    first, *rest = "é".encode()
    harness.push(first)
    assert await harness.take() == (0, [first], "")
    harness.push(*rest)
    assert await harness.take() == (1, rest, "é")


async def test_character_that_the_end_cuts_off_is_one_replacement() -> None:
    harness = Harness(stops=["never"])
    harness.push(ord("n"), *"😀".encode()[:3], reason=FinishReason.LENGTH)
    assert (await harness.text())[0] == "n\ufffd"


async def test_F03_stop_text_over_several_tokens_is_never_shown() -> None:
    harness = Harness(stops=["DEFG"])
    assert [harness.push(token) for token in b"ABCDEF"] == [None] * 6
    assert harness.push(ord("G")) == TextStop("DEFG", 7)
    assert harness.push(ord("H")) is None
    assert harness.push(reason=FinishReason.STOP) is None
    text, last = await harness.text()
    assert text == "ABC"
    assert last.stop_text == "DEFG"
    assert last.outcome is not None
    assert (last.outcome.reason, last.outcome.num_output_tokens) == (FinishReason.STOP, 7)
    assert harness.counter.tokens == [1] * 7


async def test_F03_held_back_text_is_released_when_the_match_fails() -> None:
    harness = Harness(stops=["DEFX"])
    for token in b"ABCDEF":
        harness.push(token)
    assert await harness.take() == (0, list(b"ABCDEF"), "ABC")
    harness.push(ord("G"))
    assert await harness.take() == (6, [ord("G")], "DEFG")


async def test_F03_held_back_text_is_flushed_at_the_length_limit() -> None:
    harness = Harness(stops=["DEFG"])
    harness.push(*b"ABCDE")
    harness.push(ord("F"), reason=FinishReason.LENGTH)
    text, last = await harness.text()
    assert text == "ABCDEF"
    assert last.stop_text is None
    assert last.outcome is not None and last.outcome.reason is FinishReason.LENGTH


async def test_F03_stop_text_that_ends_another_is_cut_at_the_earliest_match() -> None:
    harness = Harness(stops=["FG", "DEFG"])
    assert [harness.push(token) for token in b"ABCDEFG"][-1] == TextStop("DEFG", 7)
    harness.push(reason=FinishReason.STOP)
    assert (await harness.text())[0] == "ABC"


async def test_F03_tokens_after_the_stop_in_one_update_are_dropped() -> None:
    harness = Harness(stops=["lo"])
    assert harness.push(*b"hello world") == TextStop("lo", 5)
    assert await harness.take() == (0, list(b"hello"), "hel")
    harness.push(reason=FinishReason.CANCELLED, num_output_tokens=11)
    last = await harness.last()
    assert (last.first_index, list(last.token_ids), last.text) == (5, [], "")
    assert last.outcome is not None
    assert (last.outcome.reason, last.outcome.num_output_tokens) == (FinishReason.STOP, 5)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.DEADLINE, FinishReason.STOP])
async def test_F03_stop_text_wins_over_an_ending_at_the_same_token(reason: FinishReason) -> None:
    harness = Harness(stops=["lo"])
    assert harness.push(*b"hello", reason=reason, stop_token_id=ord("o")) is None
    text, last = await harness.text()
    assert (text, last.stop_text) == ("hel", "lo")
    assert last.outcome is not None
    assert (last.outcome.reason, last.outcome.stop_token_id) == (FinishReason.STOP, None)
    assert harness.counter.outcomes == [last.outcome]


@pytest.mark.parametrize("flagged", [True, False])
@pytest.mark.parametrize("skip", [True, False])
async def test_F04_end_token_is_never_shown(flagged: bool, skip: bool) -> None:
    special = frozenset(CONTROL.values()) if flagged else frozenset(CONTROL.values()) - {EOS}
    harness = Harness(hidden=frozenset({EOS}) | (special if skip else frozenset()))
    harness.push(*b"h", IM_END, *b"i")
    harness.push(EOS, reason=FinishReason.STOP, stop_token_id=EOS)
    text, last = await harness.text()
    assert text == ("hi" if skip else "h<|im_end|>i")
    assert list(last.token_ids)[-1] == EOS
    assert last.outcome is not None and last.outcome.stop_token_id == EOS


async def test_failure_comes_after_what_was_there_before() -> None:
    harness = Harness()
    harness.push(*b"ab")
    error = Unavailable("the executor is gone")
    harness.stream.fail(error)
    assert await harness.take() == (0, [97, 98], "ab")
    for _ in range(2):
        with pytest.raises(Unavailable) as caught:
            await harness.stream.next()
        assert caught.value is error


async def test_outcome_that_is_an_error_is_raised() -> None:
    harness = Harness()
    harness.push(reason=FinishReason.ERROR, error="step 7 failed: out of memory")
    with pytest.raises(CitybusError, match="step 7 failed: out of memory"):
        await harness.stream.next()
    assert harness.counter.outcomes == []


async def test_only_the_first_ending_counts() -> None:
    harness = Harness()
    harness.push(*b"a", reason=FinishReason.CANCELLED)
    assert harness.push(*b"b", reason=FinishReason.STOP) is None
    harness.stream.fail(Unavailable("late"))
    text, last = await harness.text()
    assert text == "a"
    assert last.outcome is not None and last.outcome.reason is FinishReason.CANCELLED
    assert len(harness.counter.outcomes) == 1


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.DEADLINE, FinishReason.CANCELLED])
async def test_what_stands_for_a_cut_character_is_a_stop_text_only_where_the_answer_ends_by_itself(
    reason: FinishReason,
) -> None:
    """A client that cancels must not be told that the answer was complete."""
    harness = Harness(["\ufffd"])
    harness.push(97, "é".encode()[0])
    harness.push(reason=reason)
    text, last = await harness.text()
    assert last.outcome is not None
    stops = reason is FinishReason.LENGTH
    assert (text, last.stop_text) == (("a", "\ufffd") if stops else ("a\ufffd", None))
    assert last.outcome.reason is (FinishReason.STOP if stops else reason)
