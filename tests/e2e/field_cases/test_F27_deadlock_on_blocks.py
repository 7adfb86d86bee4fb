"""Four prompts that could each hold a part of the pool for ever: P = 16 blocks, C = 16 tokens, 12 blocks a prompt.

The core's own test of this case goes through all policies; this one through the processes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from citybus import Cancelled, Completion, Stream
from citybus.messages import completions_of
from scheduler_svc.sample_seeds import sample_seed
from tests.e2e.field_cases.field import Field, Ride, running_field, together
from tests.e2e.plan_log import rows

PROMPTS = [[seat, *range(3, 190)] for seat in range(200, 204)]
OUTPUT = 30
STALL_S = 10.0
"""Longest time without a step while somebody waits: 2 s, and the rest for a busy machine."""


@pytest.fixture(scope="module", params=["fcfs", "priority"])
def full_session(
    request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Field]:
    flags = ("--num-blocks", 16, "--max-step-tokens", 16)
    folder = tmp_path_factory.mktemp("full-bus")
    with running_field(tiny, folder, executor=flags, scheduler=("--policy", request.param)) as field:
        yield field


@pytest.fixture(scope="module")
def references(full_session: Field) -> list[tuple[int, ...]]:
    """REF of the four."""
    return [full_session.reference(prompt, OUTPUT) for prompt in PROMPTS]


@pytest.fixture
def full_field(full_session: Field, references: object) -> Iterator[Field]:
    """Every plan of the test computes something, or tells the executor of an end."""
    since = len(full_session.bus.plans())
    yield full_session
    full_session.check()
    assert all(rows(plan) or plan["finished"] for plan in full_session.bus.plans()[since:])


def read_all(field: Field, rides: Sequence[Ride]) -> list[tuple[int, ...]]:
    """All answers. Raises AssertionError where somebody waits and no step is made."""
    pool = ThreadPoolExecutor(len(rides))
    futures = [pool.submit(ride.read) for ride in rides]
    steps, since = -1, time.monotonic()
    try:
        while not all(future.done() for future in futures):
            state = field.bus.status()
            if state.waiting == 0 or state.totals.steps > steps:
                steps, since = state.totals.steps, time.monotonic()
            assert time.monotonic() - since < STALL_S, f"nothing runs on, and {state.waiting} wait"
            time.sleep(0.05)
        return [future.result().token_ids for future in futures]
    finally:
        pool.shutdown(wait=False)  # a read that hangs ends with its bus


def read_samples(field: Field, streams: Sequence[Stream]) -> list[list[tuple[int, ...]]]:
    """Every sample of all answers. Raises TimeoutError where one hangs."""
    return [
        [completion.token_ids for completion in completions]
        for completions in together([lambda stream=stream: _samples(stream) for stream in streams])  # type: ignore[misc]
    ]


def _samples(stream: Stream) -> list[Completion]:
    deltas = list(stream)
    return completions_of(deltas, stream.finishes, stream.request_id())


def test_F27_two_samples_of_each(full_field: Field) -> None:
    """Eight sequences that grow to 14 blocks, in a pool of 16; sampled, so that the two of a prompt part."""
    asked = [{"temperature": 1.0, "seed": seat, "n": 2} for seat in range(4)]
    expected = [
        [full_field.reference(prompt, OUTPUT, temperature=1.0, seed=sample_seed(seat, index)) for index in range(2)]
        for seat, prompt in enumerate(PROMPTS)
    ]
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        with full_field.paused():
            streams = [full_field.start(PROMPTS[seat], OUTPUT, **asked[seat]).stream for seat in order]
        assert read_samples(full_field, streams) == [expected[seat] for seat in order]


def test_F27_any_order_and_any_priorities(full_field: Field, references: list[tuple[int, ...]]) -> None:
    for turn, order in enumerate(itertools.permutations(range(4))):
        if turn % 3:
            continue  # eight of the 24, in which each is first twice
        with full_field.paused():
            rides = [
                full_field.start(PROMPTS[seat], OUTPUT, priority=place * (turn % 2), cache_salt=f"{order}")
                for place, seat in enumerate(order)
            ]
        assert read_all(full_field, rides) == [references[seat] for seat in order]


@pytest.mark.parametrize("num_tokens", [0, 1, OUTPUT // 2])
def test_F27_the_one_at_the_head_is_cancelled(
    full_field: Field, references: list[tuple[int, ...]], num_tokens: int
) -> None:
    """Before it boards, once its prefill is done, and in the middle of its answer; then the next head, too."""
    with full_field.paused():
        rides = [full_field.start(prompt, OUTPUT, cache_salt=f"cancelled {num_tokens}") for prompt in PROMPTS]
        if num_tokens == 0:
            rides[0].stream.cancel()
    rides[0].read_some(num_tokens)
    rides[0].stream.cancel()
    rides[1].stream.cancel()
    assert read_all(full_field, rides[2:]) == references[2:]
    for ride in rides[:2]:
        with pytest.raises(Cancelled):
            ride.read()


@pytest.mark.parametrize("cached", range(3))
def test_F27_a_head_whose_prefix_is_cached(full_field: Field, references: list[tuple[int, ...]], cached: int) -> None:
    """The whole prompt is in the cache, in blocks that the others want; the cached one is first, or comes later."""
    salt = f"cached {cached}"
    assert full_field.ask(PROMPTS[cached], OUTPUT, cache_salt=salt).token_ids == references[cached]
    with full_field.paused():
        rides = [full_field.start(prompt, OUTPUT, cache_salt=salt) for prompt in PROMPTS]
    assert read_all(full_field, rides) == references
