"""A service that is killed, told to end, or replaced by another one, while it answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from citybus import Client, FinishReason, Stream, Unavailable
from tests.harness import START_S, Bus, Service, canary, running_bus, wait_until

PROMPTS = [[start, *range(17)] for start in (1, 2, 3)]


@pytest.fixture
def long_bus(counting: Path, tmp_path: Path) -> Iterator[Bus]:
    """A bus whose answers take minutes, if they are to."""
    with running_bus(counting, tmp_path, executor=("--num-blocks", "12288", "--max-sequences", "4")) as bus:
        yield bus


def start(client: Client, stack: ExitStack, max_tokens: int = 60_000) -> list[Stream]:
    """Answers that have begun."""
    streams = [
        stack.enter_context(client.generate(token_ids=prompt, temperature=0.0, max_tokens=max_tokens, ignore_eos=True))
        for prompt in PROMPTS
    ]
    for stream in streams:
        next(stream)
    return streams


def check_end(stream: Stream, length: int) -> None:
    """What is left of an answer of `length` tokens is there."""
    tokens = [token for delta in stream for token in delta.token_ids]
    assert tokens == [(17 + place) % 256 for place in range(length - len(tokens), length)]
    assert stream.finish.reason is FinishReason.LENGTH
    assert stream.finish.usage.completion_tokens == length


@contextmanager
def second_scheduler(bus: Bus, model: Path, folder: Path) -> Iterator[Service]:
    """Another scheduler for the same executor."""
    flags = ("--model", str(model), "--executor", bus.executor.address, "--admin-listen", "127.0.0.1:0")
    service = Service("scheduler_svc", folder / "second.log", *flags)
    try:
        yield service
    finally:
        service.kill()


def test_a_killed_scheduler_comes_back_to_an_executor_that_forgets_what_it_left(long_bus: Bus) -> None:
    with Client(long_bus.address, reconnect=None) as client, ExitStack() as stack:
        expected = canary(client).token_ids
        streams = start(client, stack)
        long_bus.scheduler.kill()
        for stream in streams:
            with pytest.raises(Unavailable):
                list(stream)
        assert len(long_bus.resident()) == len(PROMPTS), "the executor does not know yet"
        long_bus.scheduler.restart()
        client.wait_ready(START_S)
        wait_until(lambda: long_bus.resident() == [], "what nobody knows has left", 5)
        canary(client, expected)
    assert [event["term"] for event in long_bus.executor.events("session opened")] == [1, 2]
    long_bus.wait_idle()


def test_a_second_scheduler_takes_the_executor_over_and_the_first_ends(
    long_bus: Bus, counting: Path, tmp_path: Path
) -> None:
    with Client(long_bus.address, reconnect=None) as client, ExitStack() as stack:
        expected = canary(client).token_ids
        streams = start(client, stack)
        with second_scheduler(long_bus, counting, tmp_path) as second, Client(second.address) as other:
            other.wait_ready(START_S)
            for stream in streams:
                with pytest.raises(Unavailable, match="does not know this request: send it again"):
                    list(stream)
            assert long_bus.scheduler.process.wait(START_S) == 3
            wait_until(lambda: long_bus.resident() == [], "what nobody knows has left", 5)
            canary(other, expected)
            wait_until(lambda: long_bus.resident() == [], "nothing is left", 5)
        with pytest.raises(Unavailable):
            canary(client)


def test_sigterm_lets_running_requests_end_and_refuses_new_ones(long_bus: Bus) -> None:
    with Client(long_bus.address) as client, ExitStack() as stack:
        streams = start(client, stack, max_tokens=1000)
        long_bus.scheduler.process.terminate()
        wait_until(lambda: bool(long_bus.scheduler.events("draining")), "it drains", 5)
        with pytest.raises(Unavailable, match="shutting down"):
            canary(client)
        for stream in streams:
            check_end(stream, 1000)
    assert long_bus.scheduler.process.wait(START_S) == 0
    wait_until(lambda: long_bus.resident() == [], "nothing is left", 5)


def test_sigterm_ends_what_takes_longer_than_the_grace(counting: Path, tmp_path: Path) -> None:
    flags = ("--num-blocks", "2048")
    with (
        running_bus(counting, tmp_path, executor=flags, scheduler=("--drain-grace", "0.2")) as bus,
        Client(bus.address, reconnect=None) as client,
        ExitStack() as stack,
    ):
        streams = start(client, stack)
        bus.scheduler.process.terminate()
        for stream in streams:
            with pytest.raises(Unavailable, match="shut down"):
                list(stream)
        assert bus.scheduler.process.wait(START_S) == 0


def test_an_executor_that_is_told_to_end_lets_running_requests_end(long_bus: Bus) -> None:
    with Client(long_bus.address) as client, ExitStack() as stack:
        streams = start(client, stack, max_tokens=1000)
        assert long_bus.executor.terminate() == 0
        for stream in streams:
            check_end(stream, 1000)


def test_the_successor_of_an_executor_finishes_what_took_longer_than_the_grace(counting: Path, tmp_path: Path) -> None:
    flags = ("--num-blocks", "2048", "--drain-grace", "0.2")
    with running_bus(counting, tmp_path, executor=flags) as bus, Client(bus.address) as client, ExitStack() as stack:
        streams = start(client, stack, max_tokens=2000)
        assert bus.executor.terminate() == 0
        bus.executor.restart()
        for stream in streams:
            check_end(stream, 2000)
        assert len(bus.scheduler.events("executor connected")) == 2
        bus.wait_idle()
