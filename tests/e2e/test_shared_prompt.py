"""Many users of one system prompt: its blocks are there once, and what follows it is each user's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from citybus import Client
from tests.checkpoints import write_tiny
from tests.harness import Bus, running_bus

BLOCK = 16
SYSTEM = [(7 * position) % 250 for position in range(1000)]
USERS = 10


@pytest.fixture(scope="module")
def long_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("long")
    model = write_tiny(folder / "tiny", max_model_len=2048)
    with running_bus(model, folder / "bus", executor=("--num-blocks", "400")) as bus:
        yield bus


def question(user: int) -> list[int]:
    """The system prompt and 30 tokens of a user, the first ten of which are everybody's: they part inside a block."""
    return [*SYSTEM, *range(10), *((user + 3 * position) % 250 for position in range(20))]


def test_the_blocks_of_a_system_prompt_are_held_once(long_bus: Bus) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "cache_salt": "ten users"}
    with Client(long_bus.address) as client, ExitStack() as stack:
        first = client.complete(token_ids=question(0), max_tokens=40, **options)
        assert first.finish.usage.cached_tokens == 0
        streams = [
            stack.enter_context(client.generate(token_ids=question(user), max_tokens=600, **options))
            for user in range(USERS)
        ]
        for stream in streams:
            next(iter(stream))
        held = long_bus.status().pool.held
        lengths = USERS * (600 + 30) // BLOCK
        assert held <= len(SYSTEM) // BLOCK + lengths + 2 * USERS, "not ten times"
        answers = []
        for stream in streams:
            tokens = [token for delta in stream for token in delta.token_ids]
            answers.append(tokens)
            computed = stream.finish.usage.prompt_tokens - stream.finish.usage.cached_tokens
            assert computed < 20 + BLOCK, "less than one block more than its own part"
    long_bus.wait_idle()
    assert answers[0][:39] == list(first.token_ids[1:])


def test_each_reads_its_own_continuation(long_bus: Bus) -> None:
    with Client(long_bus.address) as client:
        for user in range(USERS):
            alone = client.complete(token_ids=question(user), max_tokens=20, temperature=0.0, cache_salt=f"only {user}")
            shared = client.complete(token_ids=question(user), max_tokens=20, temperature=0.0, cache_salt="ten users")
            assert shared.token_ids == alone.token_ids
    long_bus.wait_idle()
