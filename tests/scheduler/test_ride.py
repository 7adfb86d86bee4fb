"""A request with several samples, as its readers see it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from common.errors import Aborted, AlreadyExists, CitybusError, Exhausted, InvalidRequest
from scheduler_svc.answer_params import AnswerParams
from scheduler_svc.core.request import FinishReason, Outcome, SequenceUpdate
from scheduler_svc.detokenizer import Detokenizer
from scheduler_svc.output_stream import Delta, OutputObserver, OutputStream
from scheduler_svc.ride import Reading, Ride, Sample
from scheduler_svc.rides import Rides
from scheduler_svc.token_bytes import TokenBytes
from tests.scheduler.text_folders import byte_level

BYTES = TokenBytes(byte_level())


class Counter:
    def __init__(self) -> None:
        self.tokens = 0

    def on_tokens(self, count: int) -> None:
        self.tokens += count

    def on_outcome(self, outcome: Outcome) -> None:
        return


def make(observer: OutputObserver, first_index: int, sample: int) -> OutputStream:
    return OutputStream(Detokenizer(BYTES, (), frozenset()), ["END"], observer, first_index, sample)


def a_ride(num_samples: int, name: str = "a", grace_s: float = 1.0, answers: AnswerParams | None = None) -> Ride:
    samples = [Sample(index, 10 + index, make, Counter(), None) for index in range(num_samples)]
    return Ride(("", name), samples, answers or AnswerParams(num_samples, num_samples), b"digest", grace_s, None)


def end(reason: FinishReason, count: int = 0) -> Outcome:
    return Outcome(reason, 3, count, 0, 0, 0.0, 0.0, 1.0)


def say(ride: Ride, sample: int, first: int, text: bytes, outcome: Outcome | None = None) -> object:
    return ride.samples[sample].push(SequenceUpdate(10 + sample, first, tuple(text), outcome))


async def read(reading: Reading, num_samples: int) -> dict[int, list[Delta]]:
    """Everything, by sample."""
    found: dict[int, list[Delta]] = {}
    while num_samples:
        async with asyncio.timeout(5):
            delta = await reading.next()
        found.setdefault(delta.sample, []).append(delta)
        num_samples -= delta.outcome is not None
    return found


def texts(found: dict[int, list[Delta]]) -> dict[int, str]:
    return {sample: "".join(delta.text for delta in deltas) for sample, deltas in found.items()}


async def test_each_sample_has_its_own_tokens_text_and_end() -> None:
    ride = a_ride(3)
    reader = asyncio.create_task(read(ride.stream, 3))
    say(ride, 0, 0, b"h")
    await asyncio.sleep(0)
    say(ride, 2, 0, b"other")
    say(ride, 1, 0, b"xEND")  # a stop text of one sample alone
    say(ride, 1, 4, b"", end(FinishReason.STOP, 4))
    assert not ride.has_ended
    say(ride, 0, 1, b"i", end(FinishReason.LENGTH, 2))
    say(ride, 2, 5, b"", end(FinishReason.LENGTH, 5))
    assert ride.has_ended
    assert not ride.is_lost
    found = await reader
    assert texts(found) == {0: "hi", 1: "x", 2: "other"}
    assert all(delta.outcome is None for deltas in found.values() for delta in deltas[:-1])
    assert [delta.first_index for delta in found[0]] == [0, 1]


async def test_no_sample_waits_for_another_that_says_more() -> None:
    ride = a_ride(2)
    for index in range(10):
        say(ride, 0, index, b"a")
        say(ride, 1, index, b"b")
        pair = [(await ride.stream.next()).sample for _ in range(2)]
        assert sorted(pair) == [0, 1]


@pytest.mark.parametrize("starts", [(), (1,), (2, 0, 3), (0, 5, 1)])
async def test_a_reader_comes_back_to_each_sample_where_it_was(starts: Sequence[int]) -> None:
    ride = a_ride(3)
    first = ride.stream
    for sample in range(3):
        say(ride, sample, 0, b"hello")
    say(ride, 1, 5, b"", end(FinishReason.LENGTH, 5))
    again = ride.attach(starts)
    with pytest.raises(Aborted):
        await read(first, 3)
    for sample in (0, 2):
        say(ride, sample, 5, b"!", end(FinishReason.LENGTH, 6))
    wanted = [*starts, 0, 0, 0]
    whole = ["hello!", "hello", "hello!"]
    assert texts(await read(again, 3)) == {sample: whole[sample][wanted[sample] :] for sample in range(3)}


async def test_a_start_that_cannot_be_leaves_the_reader_alone() -> None:
    ride = a_ride(2)
    say(ride, 0, 0, b"hi", end(FinishReason.LENGTH, 2))
    with pytest.raises(InvalidRequest, match="2 tokens only"):
        ride.attach([3, 0])
    with pytest.raises(InvalidRequest, match="2 samples only"):
        ride.attach([0, 0, 0])
    say(ride, 1, 0, b"x", end(FinishReason.LENGTH, 1))
    assert texts(await read(ride.stream, 2)) == {0: "hi", 1: "x"}


async def test_where_one_sample_fails_all_do() -> None:
    cancelled: list[int] = []
    rides = Rides(8, cancelled.append)
    ride = a_ride(3)
    rides.add(ride)
    say(ride, 0, 0, b"hi", end(FinishReason.LENGTH, 2))
    say(ride, 1, 0, b"x")
    ride.samples[2].fail(CitybusError("the step failed"))
    assert cancelled == [10, 11, 12], "the scheduler is told; who has ended does not mind"
    assert ride.has_ended
    assert ride.is_lost
    say(ride, 1, 1, b"", end(FinishReason.CANCELLED, 1))
    with pytest.raises(CitybusError, match="the step failed"):
        await read(ride.stream, 3)
    with pytest.raises(CitybusError, match="the step failed"):
        await read(ride.attach(()), 3)


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CANCELLED, FinishReason.ERROR])
async def test_a_request_of_which_one_sample_failed_before_this_process_ends_with_the_others(
    reason: FinishReason,
) -> None:
    rides = Rides(3, lambda sequence_id: None)
    ride = a_ride(3)
    ride.samples[1].ended_before(end(FinishReason.ERROR))
    rides.add(ride)
    say(ride, 0, 0, b"", end(FinishReason.LENGTH))
    assert not ride.has_ended
    say(ride, 2, 0, b"", end(reason))
    assert ride.has_ended and ride.is_lost
    with rides.reserve(ride.key, 3):
        pass


async def test_a_sample_counts_as_a_request() -> None:
    rides = Rides(5, lambda sequence_id: None)
    ride = a_ride(3)
    with rides.reserve(ride.key, 3):
        rides.add(ride)
    full = "3 of at most 5 requests, and this one counts as 3"
    with pytest.raises(Exhausted, match=full), rides.reserve(("", "b"), 3):
        pass
    with rides.reserve(("", "b"), 2), pytest.raises(AlreadyExists), rides.reserve(ride.key, 1):
        pass
    with pytest.raises(Exhausted, match="counts as 6, and the server serves 5 at once") as caught:
        rides.reserve(("", "b"), 6).__enter__()
    assert caught.value.retry_after_s is None, "it never can"
    for sample in range(3):
        say(ride, sample, 0, b"", end(FinishReason.LENGTH))
    with rides.reserve(("", "c"), 5):
        pass


async def test_who_leaves_ends_all_samples() -> None:
    cancelled: list[int] = []
    rides = Rides(8, cancelled.append)
    ride = a_ride(3, grace_s=0.0)
    rides.add(ride)
    rides.board(ride)
    rides.leave(ride)
    assert cancelled == [10, 11, 12]


async def test_the_same_request_is_compared_only_where_it_could_go_on() -> None:
    """A digest of many megabytes takes longer than a step."""
    compared: list[bytes] = []

    def digest() -> bytes:
        compared.append(b"digest")
        return b"digest"

    rides = Rides(8, lambda sequence_id: None)
    lasting, passing = a_ride(1), a_ride(1, "b", grace_s=0.0)
    rides.add(lasting)
    rides.add(passing)
    assert rides.joinable(("", "c"), digest) is None
    assert rides.joinable(passing.key, digest) is None
    rides.board(lasting)
    assert rides.joinable(lasting.key, digest) is None
    assert compared == []
    rides.leave(lasting)
    assert rides.joinable(lasting.key, digest) is lasting
    assert rides.joinable(lasting.key, lambda: b"another") is None
    assert compared == [b"digest"]
