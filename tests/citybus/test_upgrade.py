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
from citybus.messages import RequestOptions
from tests.checkpoints import write_tiny
from tests.citybus.serving import CITYBUS, WAIT_S, Serving, free_port

RIDERS = 4
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
        [*CITYBUS, "upgrade", f"--address={address}"],
        env=os.environ | {"XDG_STATE_HOME": str(model.parent / "state")},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == expect, done
    return done


class Riders:
    """Clients that ask for one answer again and again, for as long as the `with` block takes; none may differ."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(RIDERS)
        self._riders: list[Future[int]] = []
        with Client(address) as client:
            self._expected = client.complete("the rain", **OPTIONS).token_ids
        assert len(self._expected) == 400

    def __enter__(self) -> Riders:
        self._riders = [self._pool.submit(self._ride) for _ in range(RIDERS)]
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._pool.shutdown()

    def check(self) -> None:
        assert all(rider.result() >= 1 for rider in self._riders)

    def _ride(self) -> int:
        rides = 0
        with Client(self._address) as client:
            while not self._enough.is_set():
                tokens: list[int] = []
                try:
                    with client.generate("the rain", **OPTIONS) as stream:
                        for delta in stream:
                            tokens += delta.token_ids
                except Unavailable:  # nobody was there to take it
                    assert not tokens
                else:
                    assert tuple(tokens) == self._expected
                    rides += 1
        return rides


def resident(serving: Serving) -> list[int]:
    """How many answers each scheduler found under way."""
    found = (re.search(r"scheduler: executor connected .*resident=(\d+)", line) for line in serving.lines)
    return [int(match[1]) for match in found if match]


def test_streams_go_on_whatever_becomes_of_the_scheduler(model: Path, tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text("window = 2\n")
    with served(model, "--verbose", f"--scheduler-arg=--config={settings}") as serving:
        first = serving.children()["scheduler_svc"]
        with Riders(serving.address) as riders:
            settings.write_text("window = 0\n")
            assert re.fullmatch(
                r"citybus: the new scheduler ended while it started \(exit code 2\): .*window.*: the old one goes on\n",
                upgrade(model, serving.address, expect=1).stderr,
            )
            assert serving.children()["scheduler_svc"] == first
            settings.write_text("window = 2\n")
            said = upgrade(model, serving.address).stdout.splitlines()
            assert said[:2] == ["the new scheduler starts", "the new scheduler stands by"]
            assert re.fullmatch(r"version (\S+) -> \1, with a pause of \d+\.\d\d s", said[2])
            assert len(said) == 3
            for number in range(3):
                os.kill(serving.children()["scheduler_svc"], signal.SIGUSR1)
                serving.says("the scheduler is healthy", times=3 + number)
        riders.check()
        assert serving.children()["scheduler_svc"] != first
        assert sum("was told to end: starting it again" in line for line in serving.lines) == 3
        assert len(resident(serving)) == 5
        assert all(1 <= count <= RIDERS for count in resident(serving)[1:])
        assert serving.end() == 0


def test_without_a_journal_there_is_no_upgrade(model: Path) -> None:
    with served(model, "--journal=none") as serving:
        said = upgrade(model, serving.address, expect=1)
        assert said.stderr.startswith("citybus: the scheduler has no journal, so that nobody can take over from it")
        assert serving.end() == 0


def test_without_a_server_there_is_one_clear_line(model: Path) -> None:
    port = free_port()
    assert upgrade(model, f"127.0.0.1:{port}", expect=1).stderr == (
        f"citybus: no 'citybus serve' of this user can be reached at {model.parent}/state/citybus/serve-{port}.socket "
        "(No such file or directory): start one, or name the address it listens on with --address; docs/docker.md says "
        "how a container is upgraded\n"
    )
