"""`citybus upgrade` of a real `citybus serve`, with answers under way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from citybus import Client, Unavailable
from citybus.requests import RequestOptions
from tests.checkpoints import write_tiny
from tests.citybus.serving import CITYBUS, WAIT_S, Serving, free_port
from tests.harness import Service

LENGTHS = (400, 363, 326, 289)
"""Of the answers; they differ, so that there is always one under way."""
OPTIONS: RequestOptions = {"max_tokens": 400, "temperature": 0.8, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@contextmanager
def served(model: Path, *arguments: str) -> Iterator[Serving]:
    serving = Serving(model, *arguments)
    try:
        serving.says("serving on")
        yield serving
    finally:
        serving.close()


def upgrade(model: Path, address: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*CITYBUS, "upgrade", f"--listen={address}"],
        env=os.environ | {"XDG_STATE_HOME": str(model.parent / "state")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == expect, done
    return done


class Riders:
    """Clients that ask for an answer again and again, for as long as the `with` block takes; none may differ."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._enough, self._one_has_begun = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(len(LENGTHS))
        self._riders: list[Future[int]] = []
        with Client(address) as client:
            self._expected = client.complete("the rain", **OPTIONS).token_ids
        assert len(self._expected) == max(LENGTHS)

    def __enter__(self) -> Riders:
        self._riders = [self._pool.submit(self._ride, length) for length in LENGTHS]
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._pool.shutdown()

    def wait_for_one(self) -> None:
        """Return when an answer has just begun."""
        self._one_has_begun.clear()
        assert self._one_has_begun.wait(WAIT_S)

    def check(self) -> None:
        """Every answer that began has come to its end."""
        assert all(rider.result() >= 1 for rider in self._riders)

    def _ride(self, length: int) -> int:
        rides = 0
        with Client(self._address) as client:
            while not self._enough.is_set():
                tokens: list[int] = []
                try:
                    with client.generate("the rain", **OPTIONS | {"max_tokens": length}) as stream:
                        for delta in stream:
                            if not tokens:
                                self._one_has_begun.set()
                            tokens += delta.token_ids
                except Unavailable:  # nobody was there to take it
                    assert not tokens
                else:
                    assert tuple(tokens) == self._expected[:length]
                    rides += 1
        return rides


def resident(serving: Serving) -> list[int]:
    """How many answers each scheduler found under way."""
    found = (re.search(r"scheduler: executor connected .*resident=(\d+)", line) for line in serving.lines)
    return [int(match[1]) for match in found if match]


def test_streams_go_on_whatever_becomes_of_the_scheduler(model: Path, tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text('policy = "priority"\n')
    with served(model, "--verbose", f"--scheduler-arg=--config={settings}") as serving:
        first = serving.children()["scheduler_svc"]
        with Riders(serving.address) as riders:
            settings.write_text('policy = "no-such-policy"\n')
            refused = upgrade(model, serving.address, expect=1).stderr
            assert refused.startswith(
                "citybus: the new scheduler ended while it started (exit code 2): --policy: there is"
            )
            assert refused.endswith(": the old one goes on\n")
            assert serving.children()["scheduler_svc"] == first
            settings.write_text('policy = "priority"\n')
            said = upgrade(model, serving.address).stdout.splitlines()
            assert said[:2] == ["the new scheduler starts", "the new scheduler stands by"]
            assert re.fullmatch(r"version (\S+) -> \1, with a pause of \d+\.\d\d s", said[2])
            assert len(said) == 3
            for number in range(3):
                riders.wait_for_one()
                os.kill(serving.children()["scheduler_svc"], signal.SIGUSR1)
                serving.says("the scheduler is healthy", times=3 + number)
        riders.check()
        assert serving.children()["scheduler_svc"] != first
        assert sum("was told to end: starting it again" in line for line in serving.lines) == 3
        assert len(resident(serving)) == 5
        assert all(1 <= count <= len(LENGTHS) for count in resident(serving)[1:])
        assert serving.end() == 0


def test_without_a_journal_nobody_takes_over_but_another_scheduler_and_then_for_good(
    model: Path, tmp_path: Path
) -> None:
    with served(model, "--journal=none") as serving, Client(serving.address) as client:
        said = upgrade(model, serving.address, expect=1)
        assert said.stderr.startswith("citybus: the scheduler has no journal, so that nobody can take over from it")
        with client.generate("the rain", **OPTIONS | {"max_tokens": 500}) as stream:
            next(stream)
            flags = ("--model", str(model), "--executor", serving.executor, "--admin-listen", "127.0.0.1:0")
            token = ("--executor-token-file", str(serving.token))
            other = Service("scheduler_svc", tmp_path / "other.log", *flags, *token)
            try:
                assert serving.process.wait(WAIT_S) == 1
            finally:
                other.kill()
    assert serving.lines[-1].startswith("citybus: the scheduler ended (exit code 3): another scheduler has taken the")
    assert serving.lines[-1].endswith("stop the one of the two that is not wanted, then serve again")
    assert sum("the scheduler is healthy" in line for line in serving.lines) == 1


def test_without_a_server_there_is_one_clear_line(model: Path) -> None:
    port = free_port()
    assert upgrade(model, f"127.0.0.1:{port}", expect=1).stderr == (
        f"citybus: no 'citybus serve' of this user can be reached at {model.parent}/state/citybus/serve-{port}.socket "
        "(No such file or directory): start one, or say with --listen where it listens; docs/docker.md says how a "
        "container is upgraded\n"
    )
