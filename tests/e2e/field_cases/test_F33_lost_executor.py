"""An executor that dies, freezes or cannot be reached: health says so, and nobody waits for ever."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from citybus import CitybusError, Client, Completion, Keepalive, Reconnect, Unavailable
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import GREEDY, Field, Ride, is_serving, running_executor, scheduler_field, together
from tests.e2e.field_cases.link import Link
from tests.harness import Service, wait_until

PROMPTS = [[seat, *range(40, 60)] for seat in range(10, 18)]
LENGTHS = [600] * 3 + [80] * 5
STEP_TIMEOUT_S = 2
NOTICED_S = 15.0
"""The step timeout and the 2 s of an attempt to reach the executor again; the rest is for a busy machine."""

Change = Callable[[Service, Link], object]


def resume(executor: Service, link: Link) -> None:
    executor.send(signal.SIGCONT)


def cut(executor: Service, link: Link) -> None:
    link.cut()
    executor.send(signal.SIGCONT)


def hang(executor: Service, link: Link) -> None:
    link.hang()
    executor.send(signal.SIGCONT)


LOSSES: dict[str, tuple[Change, Change]] = {
    "killed": (lambda executor, link: executor.kill(), lambda executor, link: executor.restart()),
    "stopped": (lambda executor, link: None, resume),
    "cut_off": (cut, lambda executor, link: link.mend()),
    "link_hangs": (hang, lambda executor, link: link.mend()),
}
"""What happens to an executor that stands still, or to the way to it, and how it ends."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny", max_model_len=4096)


@pytest.fixture(scope="module")
def executor(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Three seats."""
    log = tmp_path_factory.mktemp("executor") / "executor.log"
    with running_executor(model, log, "--num-blocks", 1024, "--max-sequences", 3) as service:
        yield service


@pytest.fixture
def link(executor: Service) -> Iterator[Link]:
    with Link(executor.address) as between:
        yield between


def outcome(ride: Ride) -> Completion | CitybusError:
    try:
        return ride.read()
    except CitybusError as error:
        return error


def start_eight(field: Field, lengths: list[int]) -> list[Ride]:
    """Three that run, and have begun to answer, and five in the queue; then the executor stands still."""
    with field.paused():
        rides = [field.start(prompt, length) for prompt, length in zip(PROMPTS, lengths, strict=True)]
    for ride in rides[:3]:
        ride.read_some(3)
    field.bus.executor.send(signal.SIGSTOP)
    state = field.bus.status()
    assert (state.running, state.waiting) == (3, 5)
    return rides


@pytest.mark.parametrize("loss", LOSSES)
def test_F33_away_for_too_long(executor: Service, link: Link, model: Path, tmp_path: Path, loss: str) -> None:
    lose, restore = LOSSES[loss]
    flags = ("--executor", link.address, "--step-timeout", STEP_TIMEOUT_S, "--executor-timeout", 1)
    with scheduler_field(model, tmp_path, executor, *flags) as field:
        references = [field.ask(prompt, 5).token_ids for prompt in PROMPTS]
        rides = start_eight(field, [3000] * 8)
        lose(executor, link)
        wait_until(lambda: not is_serving(field.bus.address), "the loss is noticed", NOTICED_S)
        ends = together([partial(outcome, ride) for ride in rides])
        assert [isinstance(end, Unavailable) for end in ends] == [True] * 8
        with pytest.raises(Unavailable) as caught:
            field.ask(PROMPTS[0], 5)
        assert caught.value.retry_after_s is not None
        restore(executor, link)
        field.client.wait_ready(60)
        for prompt, reference in zip(PROMPTS, references, strict=True):
            answer = field.ask(prompt, 5)
            assert answer.token_ids == reference
            if loss == "killed":
                assert answer.finish.usage.cached_tokens == 0, "nothing of the lost pool is found"
        field.check()


@pytest.fixture(scope="module")
def references(executor: Service, model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, ...]]:
    """REF of the eight, at `LENGTHS`."""
    with scheduler_field(model, tmp_path_factory.mktemp("references"), executor) as field:
        return [field.reference(prompt, length) for prompt, length in zip(PROMPTS, LENGTHS, strict=True)]


@pytest.mark.parametrize("loss", LOSSES)
def test_F33_back_in_time(
    executor: Service, link: Link, model: Path, tmp_path: Path, references: list[tuple[int, ...]], loss: str
) -> None:
    lose, restore = LOSSES[loss]
    flags = ("--executor", link.address, "--step-timeout", STEP_TIMEOUT_S, "--executor-timeout", 120)
    with scheduler_field(model, tmp_path, executor, *flags) as field:
        rides = start_eight(field, LENGTHS)
        lose(executor, link)
        wait_until(lambda: not is_serving(field.bus.address), "the loss is noticed", NOTICED_S)
        restore(executor, link)
        assert [answer.token_ids for answer in together([ride.read for ride in rides])] == references
        assert is_serving(field.bus.address)
        field.check()


@pytest.mark.parametrize("loss", LOSSES)
def test_F33_back_in_time_and_the_scheduler_was_killed_meanwhile(
    executor: Service, link: Link, model: Path, tmp_path: Path, references: list[tuple[int, ...]], loss: str
) -> None:
    """The scheduler that begins finds no executor; who asked hears nothing but the answer."""
    lose, restore = LOSSES[loss]
    flags = ("--executor", link.address, "--step-timeout", STEP_TIMEOUT_S, "--executor-timeout", 120)
    journal = ("--journal", tmp_path / "journal.db")
    with scheduler_field(model, tmp_path / "bus", executor, *flags, *journal) as field:
        rides = start_eight(field, LENGTHS)
        lose(executor, link)
        wait_until(lambda: not is_serving(field.bus.address), "the loss is noticed", NOTICED_S)
        field.bus.scheduler.kill()
        field.bus.scheduler.restart()
        assert not is_serving(field.bus.address)
        restore(executor, link)
        assert [answer.token_ids for answer in together([ride.read for ride in rides])] == references
        assert is_serving(field.bus.address)
        field.check()
        assert field.metric("request_success_total") == len(rides) + 1, "one outcome for each, and the canary's"
        assert not [event for event in field.bus.scheduler.events() if event["level"] == "error"], "invariants, too"


def test_F33_a_successor_without_an_executor_until_its_clients_have_left(
    executor: Service, model: Path, tmp_path: Path
) -> None:
    """Every client is told; what it left behind ends once, as cancelled, when there is an executor again."""
    flags = ("--journal", tmp_path / "journal.db", "--attach-grace", 0.5)
    with (
        scheduler_field(model, tmp_path / "bus", executor, *flags) as field,
        Client(field.bus.address, reconnect=Reconnect(timeout_s=1.0, grace_s=0.5)) as client,
    ):
        rides = [Ride(client.generate(token_ids=prompt, max_tokens=3000, **GREEDY)) for prompt in PROMPTS]
        rides[0].read_some(3)
        executor.kill()
        field.bus.scheduler.kill()
        field.bus.scheduler.restart()
        ends = together([partial(outcome, ride) for ride in rides])
        assert [isinstance(end, Unavailable) for end in ends] == [True] * 8
        executor.restart()
        field.client.wait_ready(60)
        field.check()
        assert field.metric("request_success_total", finished_reason="cancelled") == 8
        assert field.metric("request_success_total") == 9, "the canary's, and no other"


def test_F33_idle_is_healthy_and_a_frozen_executor_is_noticed_without_work(
    executor: Service, link: Link, model: Path, tmp_path: Path
) -> None:
    with scheduler_field(model, tmp_path, executor, "--executor", link.address, "--step-timeout", 1) as field:
        for _ in range(10):
            time.sleep(0.2)
            assert is_serving(field.bus.address)
        executor.send(signal.SIGSTOP)
        wait_until(lambda: not is_serving(field.bus.address), "unanswered pings are noticed", 10 + NOTICED_S)
        executor.send(signal.SIGCONT)
        field.client.wait_ready(60)
        field.check()


def test_F33_frozen_scheduler_is_noticed_by_its_client(executor: Service, model: Path, tmp_path: Path) -> None:
    with scheduler_field(model, tmp_path, executor) as field:
        with (
            Client(field.bus.address, keepalive=Keepalive(interval_s=5.0, timeout_s=1.0), reconnect=None) as client,
            client.generate(token_ids=[1, 2], max_tokens=3000, temperature=0, ignore_eos=True) as stream,
        ):
            next(stream)
            field.bus.scheduler.send(signal.SIGSTOP)
            with pytest.raises(Unavailable, match="ping"):
                list(stream)
        field.bus.scheduler.send(signal.SIGCONT)
        field.check()
