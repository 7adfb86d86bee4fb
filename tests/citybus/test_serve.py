"""`citybus serve` with the real services and a tiny model."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from citybus import Client
from citybus.cli import serve
from citybus.cli.addresses import add_addresses, check_free
from citybus.executor.v1 import executor_pb2, executor_pb2_grpc
from citybus.failure import Failure
from citybus.keys import add_line, make_key
from tests.checkpoints import write_tiny
from tests.citybus.conftest import Served
from tests.citybus.scripted_server import FULL, REFUSED
from tests.citybus.serving import CITYBUS, WAIT_S, Serving, free_port, runs, until


def ended_requests(admin: str) -> int | None:
    """How many requests have ended, None while nobody answers."""
    command = [*CITYBUS, "status", "--json", "--interval=0.05", f"--admin-address={admin}"]
    status = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(json.loads(status.stdout)["totals"]["finished"]) if status.returncode == 0 else None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def serving(model: Path) -> Iterator[Serving]:
    served = Serving(model)
    try:
        served.says("serving on")
        yield served
    finally:
        served.close()


def test_options_of_the_scheduler_are_passed_on() -> None:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    assert serve._passed_on("scheduler", parser.parse_args([])) == ["--drain-grace=30.0"]
    args = parser.parse_args(["--policy", "priority", "--speculative-tokens", "4"])
    passed = ["--policy=priority", "--speculative-tokens=4", "--drain-grace=30.0"]
    assert serve._passed_on("scheduler", args) == passed


def test_it_answers_says_how_to_go_on_and_drains(serving: Serving) -> None:
    assert serving.lines[0] == "starting the executor and the scheduler for tiny"
    healthy = sorted(line.split(" after ")[0] for line in serving.lines if "is healthy" in line)
    assert healthy == ["the executor is healthy", "the scheduler is healthy"]
    assert "> What is the capital of France?" in serving.lines
    serving.says(r" generate \"")
    command = serving.lines[-1].split(" generate ")[1]
    assert command == f'"What is gravity?" --temperature 0 --address {serving.address}'
    children = serving.children()
    assert sorted(children) == ["executor_svc", "scheduler_svc"]
    with Client(serving.address) as client, client.generate("abc", max_tokens=300, ignore_eos=True) as stream:
        first = next(stream)
        serving.process.send_signal(signal.SIGTERM)
        rest = list(stream)
        assert stream.finish.usage.completion_tokens == 300
    assert len(first.token_ids) + sum(len(delta.token_ids) for delta in rest) == 300
    assert serving.process.wait(timeout=WAIT_S) == 0
    assert serving.lines[-1] == "ended"
    assert not any(map(runs, children.values()))


def test_the_executor_takes_plans_from_its_scheduler_only(serving: Serving, model: Path) -> None:
    path = serving.token
    assert path.stat().st_mode & 0o777 == 0o600
    token = path.read_text().strip()
    for pid in serving.children().values():
        assert token not in Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()
    with grpc.insecure_channel(serving.executor) as channel, pytest.raises(grpc.RpcError) as caught:
        executor_pb2_grpc.ExecutorServiceStub(channel).Describe(executor_pb2.DescribeRequest(), timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert serving.end(signal.SIGTERM) == 0
    assert not path.exists()


def test_service_that_dies_comes_back(serving: Serving) -> None:
    with Client(serving.address) as client:
        expected = client.complete("abc", max_tokens=20, temperature=0).token_ids
        for name, service in (("executor", "executor_svc"), ("scheduler", "scheduler_svc")):
            os.kill(serving.children()[service], signal.SIGKILL)
            serving.says(f"the {name} is healthy", times=2)
            client.wait_ready(WAIT_S)
            assert client.complete("abc", max_tokens=20, temperature=0).token_ids == expected
    assert serving.end(signal.SIGINT) == 0


def test_nothing_is_left_when_it_is_killed(serving: Serving) -> None:
    children = serving.children()
    assert len(children) == 2
    assert serving.end(signal.SIGKILL) == -signal.SIGKILL
    until(lambda: not any(map(runs, children.values())), lambda: children)


def fails(*arguments: str) -> str:
    """What a `citybus serve` that cannot start says on standard error."""
    command = [*CITYBUS, "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout in ("", "starting the executor and the scheduler for tiny\n")
    return done.stderr


def test_it_goes_on_where_nobody_reads_what_it_says(model: Path) -> None:
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    flags = ("--listen", "--admin-listen", "--executor-listen")
    ports = [f"{flag}={address}" for flag, address in zip(flags, addresses, strict=True)]
    command = [*CITYBUS, "serve", f"--model={model}", *ports, "--kv-cache-memory=16", "--num-threads=1"]
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}  # what could not be written is still there at the end
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=buffered) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        try:
            until(lambda: ended_requests(addresses[1]) == 1, lambda: process.poll())
            with Client(addresses[0]) as client:
                client.complete("hi", max_tokens=1)
            assert process.poll() is None
            process.terminate()
            assert process.wait(timeout=WAIT_S) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("prompt", "why"), [("refuse", f"INVALID_ARGUMENT: {REFUSED}"), ("full", f"RESOURCE_EXHAUSTED: {FULL}")]
)
def test_it_serves_where_its_demonstration_is_refused(
    served: Served, prompt: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "PROMPT", prompt)
    asyncio.run(serve._prove(served.address))
    said = capsys.readouterr().out.splitlines()
    assert said[1:3] == [f"> {prompt}", f"the server refused this demonstration, and goes on ({why})"]
    assert said[4].startswith(f"serving on {served.address} until Ctrl-C")


def test_it_ends_where_its_demonstration_fails(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "PROMPT", "drain")
    with pytest.raises(Failure, match="says UNAVAILABLE: draining"):
        asyncio.run(serve._prove(served.address))


def test_port_in_use_is_one_clear_line(model: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        others = [f"{flag}=127.0.0.1:{free_port()}" for flag in ("--listen", "--admin-listen")]
        assert fails(f"--model={model}", *others, f"--executor-listen={address}") == (
            f"citybus: the executor cannot listen on {address} (Address already in use): stop what does, or choose "
            "another with --executor-listen\n"
        )
    assert fails(f"--model={model}", "--listen=nowhere") == (
        "citybus: --listen 'nowhere' is not an address: expected host:port, such as 127.0.0.1:50051\n"
    )


def test_missing_model_is_one_clear_line(tmp_path: Path) -> None:
    assert fails(f"--models-dir={tmp_path}") == (
        f"citybus: no model 'SmolLM2-135M-Instruct' in {tmp_path}: get it with 'citybus model add default'\n"
    )
    assert fails(f"--model={tmp_path}/gone") == (
        f"citybus: there is no folder {tmp_path}/gone: give one in Hugging Face layout (config.json, tokenizer.json, "
        "...)\n"
    )


def test_every_address_that_is_taken_is_named_with_its_flag() -> None:
    parser = argparse.ArgumentParser()
    add_addresses(parser)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken, free = f"127.0.0.1:{holder.getsockname()[1]}", f"127.0.0.1:{free_port()}"
        args = parser.parse_args(["--listen", taken, "--admin-listen", free, "--executor-listen", free])
        with pytest.raises(Failure) as caught:
            check_free(args)
    why = "(Address already in use): stop what does, or choose another with"
    assert str(caught.value) == (
        f"the scheduler cannot listen on {taken} {why} --listen\n"
        f"the executor cannot listen on {free} {why} --executor-listen"
    )


@pytest.mark.parametrize(
    ("argument", "refusal"),
    [
        (
            "--scheduler-arg=--polizy=fcfs",
            "the scheduler refuses its options: unknown argument '--polizy'; did you mean '--policy'?",
        ),
        ("--num-threads=0", "the executor refuses its options: --num-threads must be at least 1"),
        (
            "--executor-arg=--listen=h:1",
            "--executor-arg=--listen: leave it out; 'citybus serve --help' has what can be",
        ),
        ("--policy=none", "the scheduler refuses its options: --policy: there is no policy 'none'"),
    ],
)
def test_option_that_is_refused_is_one_clear_line(model: Path, argument: str, refusal: str) -> None:
    ports = [f"{flag}=127.0.0.1:{free_port()}" for flag in ("--listen", "--admin-listen", "--executor-listen")]
    (line,) = fails(f"--model={model}", *ports, argument).splitlines()
    assert line.startswith(f"citybus: {refusal}")


def test_what_both_refuse_is_a_line_each(model: Path) -> None:
    ports = [f"{flag}=127.0.0.1:{free_port()}" for flag in ("--listen", "--admin-listen", "--executor-listen")]
    assert fails(f"--model={model}", *ports, "--executor-arg=--nope=1", "--scheduler-arg=--polcy=x").splitlines() == [
        "citybus: the executor refuses its options: unknown argument '--nope'; --help lists every option",
        "citybus: the scheduler refuses its options: unknown argument '--polcy'; did you mean '--policy'?",
    ]


def test_time_to_start_in_is_over_0(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--start-timeout=0"])
    assert "argument --start-timeout: expected a number over 0" in capsys.readouterr().err


def test_with_keys_it_says_that_clients_need_one(model: Path, tmp_path: Path) -> None:
    key, line = make_key("alice")
    add_line(tmp_path / "keys", line)
    served = Serving(model, f"--keys-file={tmp_path / 'keys'}")
    try:
        served.says("serving on")
        assert any("clients need an API key" in each for each in served.lines)
        with Client(served.address, api_key=key) as client:
            assert len(client.complete("abc", max_tokens=3, ignore_eos=True).token_ids) == 3
        assert served.end() == 0
    finally:
        served.close()


def test_it_serves_nobody_unasked_from_elsewhere(model: Path) -> None:
    served = Serving(model, f"--listen=0.0.0.0:{free_port()}")
    try:
        assert served.process.wait(timeout=WAIT_S) == 1
        served.says("listening on 0.0.0.0:.* without credentials .* --insecure-bind")
    finally:
        served.close()
