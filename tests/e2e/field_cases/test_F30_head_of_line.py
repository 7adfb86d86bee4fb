"""Short prompts beside a long prefill, C = 64: neither waits for the end of the other. All is counted in steps."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import Field, running_field, together
from tests.e2e.field_cases.operate import set_policy
from tests.e2e.plan_log import Journey, journeys
from tests.harness import wait_until

CHUNK, BLOCK = 64, 16
LONG = [(7 * position) % 250 for position in range(4000)]
SHORT = [[seat, *range(60, 69)] for seat in range(100, 110)]
DECODING = [[seat, 1, 2, 3] for seat in range(200, 204)]
DECODED = 300


@pytest.fixture(scope="module")
def long_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("long-bus")
    model = write_tiny(folder / "tiny", max_model_len=4096)
    flags = ("--num-blocks", 600, "--max-step-tokens", CHUNK, "--max-sequences", 16)
    with running_field(model, folder / "bus", executor=flags) as field:
        yield field


@pytest.fixture
def long_field(long_session: Field) -> Iterator[Field]:
    yield long_session
    long_session.check()


@pytest.fixture(scope="module")
def references(long_session: Field) -> list[tuple[int, ...]]:
    """REF of the four that decode, of the long one, and of the short ones."""
    return [
        *(long_session.reference(prompt, DECODED) for prompt in DECODING),
        long_session.reference(LONG, 3),
        *(long_session.reference(prompt, 3) for prompt in SHORT),
    ]


def first_token(journey: Journey, num_prompt: int) -> int:
    """The step whose chunk was the last of the prompt: it drew the first token."""
    computed = itertools.accumulate(journey.rows.values())
    return next(step for step, so_far in zip(journey.rows, computed, strict=True) if so_far == num_prompt)


def pauses(steps: list[int]) -> int:
    """The longest way from one step to the next."""
    return max(after - before for before, after in itertools.pairwise(steps))


@pytest.mark.parametrize(("policy", "waits"), [("shortest_first", False), ("fair_share", False), ("fcfs", True)])
def test_F30_short_prompts_and_running_decodes_beside_a_long_prefill(
    long_field: Field, references: list[tuple[int, ...]], policy: str, waits: bool
) -> None:
    """Under fcfs the short ones do wait: else the test would prove nothing."""
    bus, salt = long_field.bus, f"beside {policy}"
    set_policy(bus, policy)
    first = bus.status().totals.accepted + 1
    decoding = [long_field.start(prompt, DECODED, cache_salt=salt) for prompt in DECODING]
    for ride in decoding:
        ride.read_some(1)
    with long_field.paused():
        rides = [long_field.start(prompt, 3, cache_salt=salt, tenant="long") for prompt in [LONG]]
        rides += [long_field.start(prompt, 3, cache_salt=salt, tenant="short") for prompt in SHORT]
    answers = together([ride.read for ride in [*decoding, *rides]])
    assert [answer.token_ids for answer in answers] == references

    *decodes, long, tenth = [
        journey for sequence, journey in journeys(bus.plans()).items() if first <= sequence < first + 6
    ]
    short = [journeys(bus.plans())[sequence] for sequence in range(first + 5, first + 15)]
    assert tenth.steps == short[0].steps
    start, end = long.steps[0], first_token(long, len(LONG))
    assert end - start >= 60
    firsts = [first_token(journey, len(SHORT[0])) - start for journey in short]
    if waits:
        assert min(firsts) > 0.9 * (end - start)
    else:
        assert max(firsts) < 0.25 * (end - start)
    for journey in decodes:
        assert pauses([step for step in journey.steps if step <= end]) <= 3
        assert journey.steps[-1] > end, "it decoded all the while"


@pytest.mark.parametrize("policy", ["shortest_first", "fair_share"])
def test_F30_a_long_prompt_in_an_endless_flow_of_short_ones(
    long_field: Field, references: list[tuple[int, ...]], policy: str
) -> None:
    """More short prompts are there than seats, all the time; the long one boards, and goes on every few steps."""
    bus = long_field.bus
    set_policy(bus, policy, **({"ageing": "2000"} if policy == "shortest_first" else {}))
    since, over = len(bus.plans()), threading.Event()

    def flow(seat: int) -> None:
        while not over.is_set():
            prompt = [seat, *range(2 * BLOCK)]
            assert len(long_field.ask(prompt, 8, cache_salt=str(uuid.uuid4()), tenant="short").token_ids) == 8

    with ThreadPoolExecutor(24) as pool:
        flowing = [pool.submit(flow, seat) for seat in range(24)]
        try:
            wait_until(lambda: bus.status().waiting > 0, "there is a queue", 30)
            salt = f"in the flow of {policy}"
            answer = long_field.ask(LONG, 3, cache_salt=salt, tenant="long", time_limit_ms=60_000)
        finally:
            over.set()
        for each in flowing:
            each.result(60)
    assert answer.token_ids == references[len(DECODING)]

    seen = journeys(bus.plans()[since:])
    (long,) = (journey for journey in seen.values() if sum(journey.rows.values()) > len(LONG))
    end = first_token(long, len(LONG))
    assert pauses([step for step in long.steps if step <= end]) <= 5
    beside = [journey for journey in seen.values() if long.steps[0] < journey.steps[0] < end]
    assert len(beside) > 20, "the short ones did not flow"
