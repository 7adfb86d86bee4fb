"""`python -m executor_svc` as an operator meets it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from citybus.executor.v1 import executor_pb2 as pb
from citybus.executor.v1 import executor_pb2_grpc
from tests.checkpoints import write_tiny

TIMEOUT_S = 60


class Executor:
    """A child process and the lines it has logged."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "executor_svc", "--listen=127.0.0.1:0", "--num-threads=1", *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CITYBUS_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.lines: list[str] = []

    def event(self, name: str) -> dict[str, Any]:
        """The first log line of that name."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            entry: dict[str, Any] = json.loads(line)
            if entry["event"] == name:
                return entry
        raise AssertionError(f"the process ended without {name!r}: {self.lines}")

    def ended(self) -> tuple[int, str]:
        _, rest = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, rest


Start = Callable[..., Executor]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Executor] = []

    def make(*arguments: str) -> Executor:
        started.append(Executor(*arguments))
        return started[-1]

    yield make
    for executor in started:
        executor.process.kill()
        executor.process.communicate()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_it_loads_serves_and_drains(start: Start, tiny: Path, signum: signal.Signals) -> None:
    executor = start(f"--model={tiny}", "--num-blocks=9", "--metrics-listen=127.0.0.1:0")
    assert executor.event("loading the model")["dtype"] == "float32"
    assert executor.event("pool of keys and values made")["blocks"] == 9
    address = executor.event("serving")["listen"]
    with grpc.insecure_channel(address) as channel:
        stub = executor_pb2_grpc.ExecutorServiceStub(channel)
        info = stub.Describe(pb.DescribeRequest(), timeout=TIMEOUT_S, wait_for_ready=True)
    assert info.model == tiny.name and info.num_blocks == 9
    executor.process.send_signal(signum)
    code, rest = executor.ended()
    assert code == 0, rest


@pytest.mark.parametrize(("option", "expected"), [("auto", "bfloat16"), ("float32", "float32")])
def test_dtype(start: Start, tmp_path: Path, option: str, expected: str) -> None:
    executor = start(f"--model={write_tiny(tmp_path, dtype='bfloat16')}", f"--dtype={option}", "--num-blocks=1")
    assert executor.event("loading the model")["dtype"] == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--model is missing"),
        (("--model=/nowhere",), "/nowhere/config.json is missing"),
        (("--model={tiny}", "--listen=127.0.0.1:{taken}"), "cannot listen on 127.0.0.1:{taken}"),
        (("--model={tiny}", "--drain-grace=-1"), "--drain-grace must not be less than 0"),
        (("--model={tiny}", "--listen=nowhere"), "'nowhere' is not an address"),
        (("--model={tiny}", "--block-size=0"), "--block-size must be at least 1"),
        (("--model={tiny}", "--blocks=3"), "unknown argument '--blocks'"),
    ],
)
def test_what_prevents_a_start_is_one_line(start: Start, tiny: Path, arguments: tuple[str, ...], words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        values = {"tiny": tiny, "taken": taken.getsockname()[1]}
        executor = start(*(argument.format(**values) for argument in arguments))
        code, errors = executor.ended()
    assert code == 2
    assert errors.splitlines()[-1].startswith(f"executor: {words.format(**values)}")
    assert "Traceback" not in errors


def test_serving_needs_nothing_but_its_own_dependencies() -> None:
    """What converts and tokenizes is slow to import, and is not in the image."""
    code = "import sys, executor_svc.__main__, executor_svc.startup, executor_svc.models.llama; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"transformers", "tokenizers", "jinja2", "scheduler_svc"} & set(modules)
