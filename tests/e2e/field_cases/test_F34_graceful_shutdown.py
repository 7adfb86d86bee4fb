"""SIGTERM, at the scheduler and at the executor, with four streams mid-answer and four in the queue: S = 4."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from citybus import CitybusError, Unavailable
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import (
    Field,
    Ride,
    is_serving,
    running_executor,
    running_field,
    scheduler_field,
    together,
)
from tests.e2e.plan_log import journeys
from tests.harness import START_S, Service, wait_until

PROMPTS = [[seat, *range(40, 60)] for seat in range(10, 18)]
OUTPUT = 200
SEATS = 4
EXECUTOR = ("--num-blocks", 512, "--max-sequences", SEATS)
KILLED_BY_THE_SECOND = 128 + signal.SIGTERM


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny", max_model_len=1024)


@pytest.fixture(scope="module")
def executor(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """For the tests that end schedulers."""
    with running_executor(model, tmp_path_factory.mktemp("executor") / "executor.log", *EXECUTOR) as service:
        yield service


@pytest.fixture(scope="module")
def bus_session(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with running_field(model, tmp_path_factory.mktemp("bus"), executor=EXECUTOR) as field:
        yield field


@pytest.fixture
def whole_field(bus_session: Field) -> Iterator[Field]:
    """A bus for the tests that end executors and start them again."""
    yield bus_session
    bus_session.check()


@pytest.fixture(scope="module")
def references(bus_session: Field) -> list[tuple[int, ...]]:
    """REF of the eight."""
    return [bus_session.reference(prompt, OUTPUT) for prompt in PROMPTS]


def start_eight(field: Field, max_tokens: int = OUTPUT) -> list[Ride]:
    """Four that have begun to answer and four in the queue; the executor stands still now, so that nobody ends."""
    with field.paused():
        rides = [field.start(prompt, max_tokens) for prompt in PROMPTS]
    for ride in rides[:SEATS]:
        ride.read_some(3)
    field.bus.executor.send(signal.SIGSTOP)
    state = field.bus.status()
    assert (state.running, state.waiting) == (SEATS, len(PROMPTS) - SEATS)
    return rides


def read_all(rides: list[Ride]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in together([ride.read for ride in rides])]


def failure(ride: Ride) -> CitybusError:
    with pytest.raises(CitybusError) as caught:
        ride.read()
    return caught.value


def send_and_wait(service: Service, signum: signal.Signals, event: str) -> None:
    """Send a signal, and wait until the service says that it has heard it."""
    seen = len(service.events(event))
    service.send(signum)
    wait_until(lambda: len(service.events(event)) > seen, event, START_S)


def test_F34_a_scheduler_that_is_told_to_end_refuses_what_is_new_and_ends_what_it_has(
    executor: Service, model: Path, tmp_path: Path, references: list[tuple[int, ...]]
) -> None:
    with scheduler_field(model, tmp_path, executor) as field:
        first = field.bus.status().totals.accepted + 1
        rides = start_eight(field)
        send_and_wait(field.bus.scheduler, signal.SIGTERM, "draining")
        assert not is_serving(field.bus.address)
        with pytest.raises(Unavailable, match="shutting down"):
            field.ask(PROMPTS[0], 5)
        executor.send(signal.SIGCONT)
        assert read_all(rides) == references
        assert field.bus.scheduler.process.wait(START_S) == 0
        seen = journeys(field.bus.plans())
        for sequence in range(first, first + len(PROMPTS)):
            steps = seen[sequence].steps
            assert steps == list(range(steps[0], steps[-1] + 1)), "it stood still, or was computed again"
        assert field.bus.resident() == []


def test_F34_what_takes_longer_than_the_grace_ends_with_an_error_that_says_so(
    executor: Service, model: Path, tmp_path: Path
) -> None:
    """Without a journal. The clients do not try to attach: there is nothing left to attach to."""
    with scheduler_field(model, tmp_path, executor, "--drain-grace", 1) as field:
        rides = start_eight(field)
        field.bus.scheduler.send(signal.SIGTERM)
        errors = together([partial(failure, ride) for ride in rides])
        executor.send(signal.SIGCONT)
        assert {(type(error), str(error)) for error in errors} == {
            (Unavailable, "the server was shut down before the request ended: send it to another one")
        }
        assert [len(ride.deltas) > 0 for ride in rides] == [True] * SEATS + [False] * SEATS
        assert field.bus.scheduler.process.wait(START_S) == 0


@pytest.mark.parametrize(
    ("grace_s", "signals", "status"), [(1, 1, 0), (60, 2, KILLED_BY_THE_SECOND)], ids=["grace is over", "second signal"]
)
def test_F34_with_a_journal_the_rest_is_left_to_the_successor(
    executor: Service,
    model: Path,
    tmp_path: Path,
    references: list[tuple[int, ...]],
    grace_s: int,
    signals: int,
    status: int,
) -> None:
    flags = ("--journal", tmp_path / "journal.db", "--drain-grace", grace_s)
    with scheduler_field(model, tmp_path / "bus", executor, *flags) as field:
        rides = start_eight(field)
        send_and_wait(field.bus.scheduler, signal.SIGTERM, "draining")
        if signals == 2:
            field.bus.scheduler.send(signal.SIGTERM)
        assert field.bus.scheduler.process.wait(START_S) == status
        executor.send(signal.SIGCONT)
        field.bus.scheduler.restart()
        assert read_all(rides) == references
        field.check()
        connected = field.bus.scheduler.events("executor connected")[-1]
        assert (connected["running"], connected["waiting"]) == (SEATS, len(PROMPTS) - SEATS)


def test_F34_an_executor_that_is_told_to_end_ends_what_runs_and_what_waits(
    whole_field: Field, references: list[tuple[int, ...]]
) -> None:
    executor, first = whole_field.bus.executor, whole_field.bus.status().totals.accepted + 1
    rides = start_eight(whole_field)
    executor.send(signal.SIGCONT)
    send_and_wait(executor, signal.SIGTERM, "draining")
    assert not is_serving(executor.address)
    assert read_all(rides) == references
    assert executor.process.wait(START_S) == 0
    seen = journeys(whole_field.bus.plans())
    assert all(len(seen[sequence].boarded) == 1 for sequence in range(first, first + len(PROMPTS)))
    wait_until(lambda: not is_serving(whole_field.bus.address), "the scheduler says that nobody drives", START_S)
    with pytest.raises(Unavailable):
        whole_field.ask(PROMPTS[0], 5)
    executor.restart()
    whole_field.client.wait_ready(START_S)


def test_F34_a_second_signal_ends_an_executor_at_once_and_its_successor_answers(
    whole_field: Field, references: list[tuple[int, ...]]
) -> None:
    executor = whole_field.bus.executor
    rides = start_eight(whole_field)
    executor.send(signal.SIGCONT)
    send_and_wait(executor, signal.SIGTERM, "draining")
    executor.send(signal.SIGTERM)
    assert executor.process.wait(START_S) == KILLED_BY_THE_SECOND
    executor.restart()
    assert read_all(rides) == references


def test_F34_an_executor_without_a_successor_leaves_nobody_waiting(model: Path, tmp_path: Path) -> None:
    flags = (*EXECUTOR, "--drain-grace", 0.2)
    with running_field(model, tmp_path, executor=flags, scheduler=("--executor-timeout", 1)) as field:
        rides = start_eight(field, 900)
        field.bus.executor.send(signal.SIGCONT)
        assert field.bus.executor.terminate() == 0
        errors = together([partial(failure, ride) for ride in rides])
        assert {(type(error), str(error)) for error in errors} == {
            (Unavailable, "the executor is away: try again later")
        }
