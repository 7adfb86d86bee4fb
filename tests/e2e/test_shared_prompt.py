"""Ten users of one 1,000-token system prompt: its blocks are there once, and what follows them is each user's own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from citybus import Client, Stream
from citybus.requests import RequestOptions
from tests.checkpoints import write_tiny
from tests.e2e.plan_log import journeys
from tests.harness import Bus, running_bus, wait_until

BLOCK = 16
USERS = 10
SYSTEM = [(7 * position + position // 250) % 250 for position in range(1000)]
COMMON = [*SYSTEM, *range(10)]
OWN = 20
SHARED_BLOCKS = len(COMMON) // BLOCK
"""Full blocks that all prompts begin with; then they part, two tokens into the next block."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("long") / "tiny", max_model_len=2048)


@pytest.fixture(scope="module", params=[512, 2048], ids=lambda tokens: f"{tokens} tokens a step")
def long_bus(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """With 2,048 tokens a step, all users can board in one and the same step."""
    flags = ("--num-blocks", "1000", "--max-step-tokens", str(request.param))
    with running_bus(model, tmp_path_factory.mktemp("bus"), executor=flags) as bus:
        yield bus


def question(user: int, salt: str) -> RequestOptions:
    own = [(user + 3 * position) % 250 for position in range(OWN)]
    return {
        "token_ids": [*COMMON, *own],
        "temperature": 0.0,
        "ignore_eos": True,
        "max_tokens": 200,
        "cache_salt": salt,
    }


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, ...]]:
    """REF: what each user is told alone, on a cold cache."""
    folder = tmp_path_factory.mktemp("alone")
    with running_bus(model, folder, executor=("--num-blocks", "1000")) as bus, Client(bus.address) as client:
        return [client.complete(**question(user, f"alone {user}")).token_ids for user in range(USERS)]


@contextmanager
def stopped(bus: Bus) -> Iterator[None]:
    """The executor does nothing meanwhile."""
    bus.executor.send(signal.SIGSTOP)
    try:
        yield
    finally:
        bus.executor.send(signal.SIGCONT)


def check_held_once(bus: Bus, generated_before: int) -> None:
    """One reading while all users are running: their own tokens, rounded up to blocks, and the shared blocks."""
    readings = []

    def all_run() -> bool:
        readings.append(bus.status())
        return readings[-1].running == USERS

    wait_until(all_run, "all users run", 10)
    state = readings[-1]
    generated = state.totals.generated_tokens - generated_before
    in_flight = 2 * USERS
    own = USERS * (len(COMMON) % BLOCK + OWN) + generated + in_flight
    assert state.pool.held <= SHARED_BLOCKS + (own + USERS * (BLOCK - 1)) // BLOCK


def prefills(bus: Bus, answers: list[tuple[int, ...]]) -> list[int]:
    """Prompt tokens computed for each of the last users; all answers ended by their length."""
    sequences = list(journeys(bus.plans()).values())[-len(answers) :]
    return [
        sum(sequence.rows.values()) - (len(answer) - 1) for sequence, answer in zip(sequences, answers, strict=True)
    ]


def answer_of(stream: Stream) -> tuple[int, ...]:
    return tuple(token for delta in stream for token in delta.token_ids)


def test_users_who_come_while_the_first_is_answered(long_bus: Bus, alone: list[tuple[int, ...]]) -> None:
    generated = long_bus.status().totals.generated_tokens
    with Client(long_bus.address) as client, ExitStack() as stack:
        first = stack.enter_context(client.generate(**question(0, "in turn")))
        beginning = next(first).token_ids
        others = [stack.enter_context(client.generate(**question(user, "in turn"))) for user in range(1, USERS)]
        assert all(stream.request_id() for stream in others)
        check_held_once(long_bus, generated)
        assert [(*beginning, *answer_of(first)), *map(answer_of, others)] == alone
    long_bus.wait_idle()
    assert prefills(long_bus, alone) == [len(COMMON) + OWN] + [OWN] * (USERS - 1), "shared to the token"


def test_users_who_come_at_the_same_instant(long_bus: Bus, alone: list[tuple[int, ...]]) -> None:
    with Client(long_bus.address) as client, ExitStack() as stack:
        with stopped(long_bus):
            filling_the_window = client.generate(token_ids=[1], temperature=0.0, ignore_eos=True, max_tokens=3)
            assert stack.enter_context(filling_the_window).request_id()
            streams = [stack.enter_context(client.generate(**question(user, "at once"))) for user in range(USERS)]
            assert all(stream.request_id() for stream in streams)
            assert long_bus.status().waiting == USERS
            generated = long_bus.status().totals.generated_tokens
        check_held_once(long_bus, generated)
        assert [answer_of(stream) for stream in streams] == alone
    long_bus.wait_idle()
    first, *others = prefills(long_bus, alone)
    assert first == len(COMMON) + OWN
    assert max(others) < OWN + BLOCK, "a block or more was computed again"
