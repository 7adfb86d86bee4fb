"""The seats are refilled at every stop: shown from the recorded plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from citybus import Client, FinishReason
from citybus.requests import RequestOptions
from tests.e2e.plan_log import journeys, rows
from tests.harness import Bus, running_bus, wait_until

SEATS = 4
NUM_REQUESTS = 32


@pytest.fixture(scope="module", params=[1, 2], ids=["W=1", "W=2"])
def window(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def small_bus(counting: Path, window: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """A bus with few seats and room for everybody's blocks."""
    flags = ("--max-sequences", str(SEATS), "--num-blocks", "4096")
    folder = tmp_path_factory.mktemp("seats")
    with running_bus(counting, folder, executor=flags, scheduler=("--window", str(window))) as bus:
        yield bus


def length_of(index: int) -> int:
    """Tokens of the answer number `index`: 1 to 11, never in a regular beat with the seats."""
    return 1 + (index * index + 3 * index) % 11


def board(bus: Bus, requests: Sequence[RequestOptions]) -> list[list[int]]:
    """Send requests, in order, to a bus whose seats are all taken; free the seats once all wait; the answers."""
    with Client(bus.address) as client, ExitStack() as stack:
        taking: RequestOptions = {"token_ids": [0], "temperature": 0.0, "ignore_eos": True}
        first = [stack.enter_context(client.generate(**taking)) for _ in range(SEATS)]
        for stream in first:
            next(stream)
        streams = []
        for request in requests:
            streams.append(stack.enter_context(client.generate(**request)))
            assert streams[-1].request_id(), "accepted before the next is sent: ids are in order"
        wait_until(lambda: bus.status().waiting == len(requests), "all wait", 10)
        for stream in first:
            stream.cancel()
        answers = [[token for delta in stream for token in delta.token_ids] for stream in streams]
        expected = FinishReason.STOP if "stop_token_ids" in requests[0] else FinishReason.LENGTH
        assert {stream.finish.reason for stream in streams} == {expected}
    return answers


def gaps(bus: Bus, lengths: Sequence[int]) -> list[int]:
    """Steps from the one that drew the last token of a sequence to the one in which its seat was taken."""
    plans = bus.plans()
    sequences = list(journeys(plans).items())[-SEATS - len(lengths) :]
    waited = [journey for _, journey in sequences[SEATS:]]
    gone = {sequence_id: plan["step"] for plan in plans for sequence_id in plan["finished"]}
    ends = [gone[sequence_id] - 1 for sequence_id, _ in sequences[:SEATS]]  # cancelled: at once
    # Every prompt takes one step, so the n-th step of a sequence draws its n-th token.
    ends += [journey.steps[length - 1] for journey, length in zip(waited, lengths, strict=True)]
    taken = sorted(journey.steps[0] for journey in waited)
    for plan in plans:
        if taken[0] <= plan["step"] < taken[-1]:
            assert rows(plan) == SEATS, f"an empty seat in step {plan['step']} while somebody waits"
    return [start - end for end, start in zip(sorted(ends), taken, strict=False)]


def test_seat_of_an_end_that_is_foreseen_is_taken_at_the_next_step(small_bus: Bus) -> None:
    lengths = [length_of(index) for index in range(NUM_REQUESTS)]
    requests: list[RequestOptions] = [
        {"token_ids": [100 + index], "temperature": 0.0, "ignore_eos": True, "max_tokens": length}
        for index, length in enumerate(lengths)
    ]
    answers = board(small_bus, requests)
    assert answers == [[101 + index + place for place in range(length)] for index, length in enumerate(lengths)]
    assert set(gaps(small_bus, lengths)) == {1}
    small_bus.wait_idle()


def test_seat_of_an_end_that_is_drawn_is_taken_one_step_later_at_most(small_bus: Bus, window: int) -> None:
    lengths = [length_of(index) for index in range(NUM_REQUESTS)]
    requests: list[RequestOptions] = [
        {"token_ids": [100 + index], "temperature": 0.0, "stop_token_ids": [100 + index + length]}
        for index, length in enumerate(lengths)
    ]
    answers = board(small_bus, requests)
    assert answers == [[101 + index + place for place in range(length)] for index, length in enumerate(lengths)]
    assert set(gaps(small_bus, lengths)) <= {1, window}
    in_vain = [
        len(journey.steps) - length
        for journey, length in zip(list(journeys(small_bus.plans()).values())[-NUM_REQUESTS:], lengths, strict=True)
    ]
    assert set(in_vain) <= {0, window - 1}, "tokens computed after the last one"
    small_bus.wait_idle()
