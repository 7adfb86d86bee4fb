"""What a reader is told besides the tokens: in order, in time, and packed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from citybus.v1 import generation_pb2 as pb
from common.logprobs import TokenLogprobs
from scheduler_svc.annotations import Annotations, Asked
from scheduler_svc.answer_params import AnswerParams
from scheduler_svc.core.request import FinishReason, Outcome, SequenceUpdate
from scheduler_svc.core.scoring import Scored
from scheduler_svc.detokenizer import Detokenizer
from scheduler_svc.output_stream import Delta, OutputObserver, OutputStream
from scheduler_svc.relay import relay
from scheduler_svc.responses import parts_of, response_of
from scheduler_svc.ride import Ride, Sample
from scheduler_svc.rides import MAX_ANNOTATED, Rides
from tests.scheduler.test_output_stream import BYTES, Counter

PROMPT = (7, 8, 9)
ALL = Asked(logprobs=True, prompt_logprobs=True, echo="ab")


def score(position: int, num_top: int = 2) -> TokenLogprobs:
    return TokenLogprobs(
        -0.5 * position, position + 1, tuple(range(num_top)), tuple(-1.0 * top for top in range(num_top))
    )


def take(annotations: Annotations, first: int, count: int, num_top: int = 2) -> None:
    scores = tuple(score(position, num_top) for position in range(first, first + count))
    annotations.take(SequenceUpdate(1, 0, (), scored=Scored(first, scores)))


async def test_a_reader_waits_for_what_belongs_to_its_tokens() -> None:
    annotations = Annotations(ALL, PROMPT)
    known = asyncio.create_task(annotations.known(range(2)))
    for first in range(1, 5):
        await asyncio.sleep(0)
        assert not known.done()
        take(annotations, first, 1, num_top=first % 3)
    assert await known
    assert annotations.of_tokens(range(2)) == [score(3, 0), score(4, 1)]
    notes = annotations.of_prompt()
    assert notes is not None
    assert (list(notes.token_ids), notes.text, list(notes.scores)) == (
        [7, 8, 9],
        "ab",
        [None, score(1, 1), score(2, 2)],
    )


async def test_a_reader_of_the_end_of_an_answer_does_not_wait_for_the_prompt() -> None:
    annotations = Annotations(Asked(logprobs=False, prompt_logprobs=True, echo=None), PROMPT)
    assert await annotations.known(range(4, 9))
    waiting = asyncio.create_task(annotations.known(range(4)))
    await asyncio.sleep(0)
    assert not waiting.done()
    annotations.end()
    assert not await waiting
    assert annotations.of_tokens(range(4)) == []


async def test_what_does_not_follow_what_is_there_is_left_out() -> None:
    annotations = Annotations(Asked(logprobs=True, prompt_logprobs=False, echo=None), PROMPT)
    take(annotations, 4, 1)
    take(annotations, 3, 1)
    take(annotations, 3, 1)
    assert annotations.of_tokens(range(2)) == [score(3), None]
    assert annotations.of_prompt() is None
    annotations.forget()
    assert annotations.of_tokens(range(2)) == [None, None]


async def test_messages_say_what_is_known_and_what_is_not() -> None:
    annotations = Annotations(ALL, PROMPT)
    take(annotations, 1, 3)
    message = response_of(Delta(0, [4, 5], "x"), annotations, annotations)
    known, unknown = message.logprobs
    assert (known.logprob, known.rank, list(known.top_ids), list(known.top_logprobs)) == (-1.5, 4, [0, 1], [0.0, -1.0])
    assert not unknown.HasField("logprob")
    assert [each.HasField("logprob") for each in message.prompt.logprobs] == [False, True, True]
    assert not response_of(Delta(1, [5], "x"), annotations, annotations).HasField("prompt")
    assert not response_of(Delta(0, [4], "x"), None).HasField("prompt")


def test_only_the_message_with_a_long_prompt_is_large() -> None:
    for length, large in ((1024, False), (1025, True)):
        assert Annotations(ALL, range(length)).is_large(range(3)) is large
        assert not Annotations(ALL, range(length)).is_large(range(1, 3))
        assert not Annotations(Asked(logprobs=True, prompt_logprobs=False, echo=""), range(length)).is_large(range(3))


def test_a_large_delta_in_parts() -> None:
    assert list(parts_of(Delta(3, [1, 2, 3, 4, 5], "abc", None, "c"), 2)) == [
        Delta(3, [1, 2], ""),
        Delta(5, [3, 4], ""),
        Delta(7, [5], "abc", None, "c"),
    ]
    for whole in (Delta(0, [], "x"), Delta(0, [1, 2], "x")):
        assert list(parts_of(whole, 2)) == [whole]


class Written:
    """A reader's side of a call."""

    def __init__(self) -> None:
        self.messages: list[pb.GenerateResponse] = []

    async def write(self, message: pb.GenerateResponse) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("logprobs", [False, True])
async def test_the_prompt_comes_with_the_best_answer_whichever_it_is(logprobs: bool) -> None:
    """The first sample has it, and here the second is the best."""
    first = Annotations(Asked(logprobs, prompt_logprobs=True, echo="ab"), PROMPT)
    second = Annotations(Asked(logprobs, prompt_logprobs=False, echo=None), PROMPT) if logprobs else None
    samples = [Sample(index, index, make_stream, Counter(), each) for index, each in enumerate((first, second))]
    ride = Ride(("", "a"), samples, AnswerParams(2, 3), b"", 1.0, None)
    take(first, 1, 2)
    for number, sample in enumerate(samples):
        outcome = Outcome(FinishReason.LENGTH, 3, 1, 0, 0, 0.1, 0.2, 0.5, score=float(number))
        sample.push(SequenceUpdate(number, 0, (5 + number,), outcome, scored=Scored(3, (score(3 + number),))))
    reader = Written()
    async with asyncio.timeout(5):
        await relay(ride, ride.stream, cast(Any, reader))
    best, other = reader.messages
    assert (best.sample, list(best.token_ids), other.sample, list(other.token_ids)) == (0, [6], 1, [5])
    assert (list(best.prompt.token_ids), best.prompt.text, len(best.prompt.logprobs)) == ([7, 8, 9], "ab", 3)
    assert not other.HasField("prompt")
    assert [[each.rank for each in message.logprobs] for message in reader.messages] == (
        [[5], [4]] if logprobs else [[], []]
    )


def ended_with(rides: Rides, number: int, *, is_read: bool = False) -> Annotations:
    """What a request is told that has just ended."""
    annotations = Annotations(Asked(logprobs=True, prompt_logprobs=False, echo=None), PROMPT)
    sample = Sample(0, number, make_stream, Counter(), annotations)
    ride = Ride(("", str(number)), [sample], AnswerParams(), b"", 1.0, None)
    rides.add(ride)
    if is_read:
        rides.board(ride)
    outcome = Outcome(FinishReason.LENGTH, 3, 1, 0, 0, 0.1, 0.2, 0.5)
    sample.push(SequenceUpdate(number, 0, (5,), outcome, scored=Scored(3, (score(3),))))
    return annotations


async def test_of_ended_requests_only_the_last_keep_their_log_probabilities() -> None:
    rides = Rides(2 * MAX_ANNOTATED, lambda sequence_id: None)
    ended = [ended_with(rides, number) for number in range(MAX_ANNOTATED + 1)]
    assert [each.of_tokens(range(1)) for each in ended] == [[None], *[[score(3)]] * MAX_ANNOTATED]


async def test_an_ended_request_keeps_its_log_probabilities_while_it_is_read() -> None:
    rides = Rides(2 * MAX_ANNOTATED, lambda sequence_id: None)
    read = ended_with(rides, 0, is_read=True)
    later = [ended_with(rides, number) for number in range(1, MAX_ANNOTATED + 1)]
    assert [each.of_tokens(range(1)) for each in (read, *later[:2])] == [[score(3)], [None], [score(3)]]
    rides.leave(rides.find(("", "0")))
    assert read.of_tokens(range(1)) == [score(3)]
    ended_with(rides, MAX_ANNOTATED + 1)
    assert [each.of_tokens(range(1)) for each in (read, later[1])] == [[None], [score(3)]]


def make_stream(observer: OutputObserver, first_index: int, sample: int) -> OutputStream:
    return OutputStream(Detokenizer(BYTES, (), frozenset()), (), observer, first_index, sample)
