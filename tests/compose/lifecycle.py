"""The containers, for real: built, served, restarted, killed, and served again without a network. `make compose-test`.

It needs Docker with Compose 2.24 or newer, and this file's tests run in their order, so that a plain `pytest` leaves
them alone. The files of COMPOSE_FILE are used, as with any `docker compose`; the project is one of its own, which is
removed at the end with its volume and images.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from citybus import ChatMessage, Client, Stream, Unavailable

ROOT = Path(__file__).parents[2]
PROJECT = "citybus-compose-test"
SERVICES = ("executor", "scheduler")
FRANCE: list[ChatMessage] = [{"role": "user", "content": "What is the capital of France?"}]
STORY: list[ChatMessage] = [{"role": "user", "content": "Tell me a long story about a bus driver."}]
STORY_TOKENS = 200
BUILD_S = 1500
UP_S = 300


KILL = "kill -9 $(cat /proc/1/task/1/children)"
POLICY = """
from scheduler_svc.core.policy import Policy

class Youngest(Policy):
    name = "youngest"

    def admission_order(self, waiting, step, now):
        return list(waiting)[::-1]
"""


class Stack:
    """The project under test; `policies` is its policy folder, `overlay` a file of the root that comes second.

    It has ports of its own. `extra` is a file of this folder that comes last.
    """

    def __init__(self, policies: Path, overlay: str = "") -> None:
        self.policies = policies
        self.address, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._environment = os.environ | {
            "COMPOSE_PROJECT_NAME": PROJECT,
            "CITYBUS_PUBLISH": self.address,
            "CITYBUS_PUBLISH_ADMIN": admin,
            "CITYBUS_ADMIN_ADDRESS": admin,
            "CITYBUS_POLICIES": str(policies),
            "CITYBUS_STOP_GRACE": "100s",
        }
        first, *others = os.environ.get("COMPOSE_FILE", "compose.yaml").split(os.pathsep)
        self._files = [first, *([overlay] if overlay else []), *others]

    def compose(self, *arguments: str, extra: str = "testing.yaml", expect: int = 0, timeout: float = 120) -> str:
        return self.run("docker", "compose", *arguments, extra=extra, expect=expect, timeout=timeout)

    def run(self, *command: str, extra: str = "testing.yaml", expect: int = 0, timeout: float = 120) -> str:
        """Output of a command, standard error included, held against its exit code."""
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment | {"COMPOSE_FILE": os.pathsep.join([*self._files, f"tests/compose/{extra}"])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == expect, f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def up(self, *, extra: str = "testing.yaml") -> None:
        self.compose("up", "--detach", "--wait", f"--wait-timeout={UP_S}", extra=extra, timeout=UP_S + 60)

    def inside(self, service: str, script: str, *, expect: int = 0) -> str:
        return self.compose("exec", "-T", service, "sh", "-c", script, expect=expect)

    def inspect(self, service: str) -> Any:
        container = self.compose("ps", "--all", "--quiet", service).strip()
        return json.loads(self.run("docker", "inspect", container))[0]

    def status(self) -> Any:
        return json.loads(self.run(sys.executable, "-m", "citybus", "status", "--json"))

    def client(self) -> Client:
        return Client(self.address)

    @contextmanager
    def story(self) -> Iterator[Stream]:
        """A long answer, begun once the stack is ready."""
        with self.client() as client:
            client.wait_ready(UP_S)
            with client.generate(messages=STORY, temperature=0, max_tokens=STORY_TOKENS, ignore_eos=True) as stream:
                yield stream


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def folder_for_policies(factory: pytest.TempPathFactory) -> Path:
    """An empty folder that the containers' user can read."""
    folder = factory.mktemp("policies")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    made = Stack(folder_for_policies(tmp_path_factory))
    made.compose("down", "--volumes", "--remove-orphans")
    made.compose("build", timeout=BUILD_S)
    try:
        made.up()
        yield made
    finally:
        print(made.compose("logs", "--no-color", "--tail=200"))  # pytest shows it when a test fails
        made.compose("down", "--volumes", "--rmi=local")


def assert_serves(stack: Stack) -> None:
    with stack.client() as client:
        client.wait_ready(UP_S)
        answer = client.complete(messages=FRANCE, temperature=0, max_tokens=32)
    assert "Paris" in answer.text


@contextmanager
def riding(stack: Stack, expected: tuple[int, ...]) -> Iterator[None]:
    """Two clients ask for the story again and again while the block runs: none sees another token, or an error.

    The longest pause between two parts of a story is printed.
    """
    enough, boarded = threading.Event(), threading.Barrier(3)
    with ThreadPoolExecutor(2) as pool:
        riders = [pool.submit(ride, stack, expected, boarded, enough) for _ in range(2)]
        boarded.wait(UP_S)
        try:
            yield
        finally:
            enough.set()
        print(f"longest pause {max(rider.result() for rider in riders):.2f} s")


def ride(stack: Stack, expected: tuple[int, ...], boarded: threading.Barrier, enough: threading.Event) -> float:
    """Seconds of the longest pause."""
    longest, first = 0.0, True
    while not enough.is_set():
        tokens: list[int] = []
        try:
            with stack.story() as stream:
                last = time.monotonic()
                for part in stream:
                    longest = max(longest, time.monotonic() - last if tokens else 0.0)
                    last = time.monotonic()
                    tokens += part.token_ids
                    if first:
                        boarded.wait()
                        first = False
        except Unavailable:  # nobody was there to take it
            assert not tokens
        else:
            assert tuple(tokens) == expected
    return longest


def kill(stack: Stack, service: str) -> None:
    """Kill the service's process from inside, as the kernel would for memory: only a crash makes Docker restart it."""
    stack.inside(service, KILL)


def resident(stack: Stack) -> int:
    """How many requests the scheduler found under way when it connected to the executor for the last time."""
    log = stack.compose("logs", "--no-color", "--no-log-prefix", "scheduler").splitlines()
    connected = [json.loads(line[line.index("{") :]) for line in log if '"executor connected"' in line]
    return int(max(connected, key=lambda event: str(event["timestamp"]))["resident"])


def test_streams_an_answer_through_the_published_port(stack: Stack) -> None:
    with stack.client() as client, client.generate(messages=FRANCE, temperature=0, max_tokens=32) as stream:
        parts = list(stream)
    assert len(parts) > 1
    assert "Paris" in "".join(part.text for part in parts)


def test_status_answers_on_the_admin_port(stack: Stack) -> None:
    assert stack.status()["executor_connected"] is True


@pytest.mark.parametrize("service", SERVICES)
def test_runs_without_privileges_on_a_root_file_system_it_cannot_write(stack: Stack, service: str) -> None:
    assert stack.inside(service, "id -u; id -g") == "10001\n10001\n"
    status = stack.inside(service, "cat $(printf /proc/%s/status $(cat /proc/1/task/1/children))")
    facts = dict(line.split(":\t", 1) for line in status.splitlines())
    assert facts["Uid"].split() == ["10001"] * 4
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    for path in ("/", "/opt/citybus", "/models"):
        assert "Read-only file system" in stack.inside(service, f"touch {path}/x 2>&1", expect=1)
    stack.inside(service, "touch /tmp/x && rm /tmp/x")


def test_the_executor_is_not_published_and_has_no_way_out(stack: Stack) -> None:
    assert not any(stack.inspect("executor")["NetworkSettings"]["Ports"].values())
    routes = [line.split() for line in stack.inside("executor", "cat /proc/net/route").splitlines()[1:]]
    assert routes
    assert "00000000" not in [destination for _, destination, *_ in routes]


def test_the_executor_has_made_a_token_that_only_the_scheduler_can_read(stack: Stack) -> None:
    token = "/credentials/executor.token"
    for service in SERVICES:
        assert stack.inside(service, f"stat -c '%a %u' {token}") == "600 10001\n"
    assert "Read-only file system" in stack.inside("scheduler", "touch /credentials/x 2>&1", expect=1)


def test_images_hold_what_their_service_needs_and_no_more(stack: Stack) -> None:
    for service, absent in (("scheduler", ("torch", "transformers", "numpy")), ("executor", ("transformers", "gguf"))):
        code = f"from importlib.util import find_spec; print([name for name in {absent} if find_spec(name)])"
        assert stack.compose("exec", "-T", service, "python", "-c", code) == "[]\n"


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="the native library is for x86")
def test_the_image_of_the_executor_has_the_native_library(stack: Stack) -> None:
    """The wheel would be built without it by a compiler that lacks, or does not know, one of its instruction sets."""
    code = "from kernels.cpu.library import load_library; print(load_library() is not None)"
    assert stack.compose("exec", "-T", "executor", "python", "-c", code) == "True\n"


@pytest.fixture(scope="module")
def alone(stack: Stack) -> tuple[int, ...]:
    """Tokens of the story that nothing interrupted."""
    with stack.client() as client:
        tokens = client.complete(messages=STORY, temperature=0, max_tokens=STORY_TOKENS, ignore_eos=True).token_ids
    assert len(tokens) == STORY_TOKENS
    return tokens


def test_a_stream_outlives_a_killed_executor_with_the_same_tokens(stack: Stack, alone: tuple[int, ...]) -> None:
    before = stack.inspect("executor")["RestartCount"]
    with stack.story() as stream:
        tokens = [token for part in islice(stream, 5) for token in part.token_ids]
        kill(stack, "executor")
        status = stack.status()
        assert int(status["running"]) + int(status["waiting"]) == 1
        tokens += [token for part in stream for token in part.token_ids]
    assert stack.inspect("executor")["RestartCount"] == before + 1
    assert tuple(tokens) == alone
    assert_serves(stack)


def test_a_stream_outlives_a_restarted_executor_with_the_same_tokens(stack: Stack, alone: tuple[int, ...]) -> None:
    before = stack.inspect("executor")["State"]["StartedAt"]
    with stack.story() as stream:
        tokens = list(next(stream).token_ids)
        stack.compose("restart", "executor")
        tokens += [token for part in stream for token in part.token_ids]
    assert stack.inspect("executor")["State"]["StartedAt"] != before
    assert tuple(tokens) == alone
    assert_serves(stack)


def test_a_restart_of_the_scheduler_lets_the_open_stream_end(stack: Stack, alone: tuple[int, ...]) -> None:
    with stack.story() as stream:
        tokens = list(next(stream).token_ids)
        stack.compose("restart", "scheduler")
        tokens += [token for part in stream for token in part.token_ids]
    assert tuple(tokens) == alone
    assert_serves(stack)


def test_a_stream_outlives_a_killed_scheduler_with_the_same_tokens(stack: Stack, alone: tuple[int, ...]) -> None:
    before = stack.inspect("scheduler")["RestartCount"]
    with riding(stack, alone):
        kill(stack, "scheduler")
        assert_serves(stack)
    assert stack.inspect("scheduler")["RestartCount"] == before + 1
    assert resident(stack) >= 1


def test_a_policy_is_put_into_the_folder_and_set(stack: Stack) -> None:
    stack.policies.joinpath("youngest.py").write_text(POLICY)
    operate = ("exec", "-T", "scheduler", "citybus", "policy")
    assert stack.compose(*operate, "reload") == "new code: youngest\n"
    assert stack.compose(*operate, "set", "youngest") == "youngest decides now; before: fcfs\n"
    assert "* youngest" in stack.compose(*operate, "list")
    assert_serves(stack)
    stranger = ("exec", "-T", "--env=CITYBUS_ADMIN_TOKEN_FILE=", *operate[2:])
    assert "the admin token is missing or wrong" in stack.compose(*stranger, "list", expect=1)
    assert stack.compose(*operate, "set", "fcfs") == "fcfs decides now; before: youngest\n"


def test_one_command_upgrades_the_scheduler_under_running_streams(stack: Stack, alone: tuple[int, ...]) -> None:
    before = stack.inspect("scheduler")["Id"]
    with riding(stack, alone):
        upgrade = ("up", "--detach", "--build", "--no-deps", "--timeout=0", "scheduler")
        stack.compose(*upgrade, "--force-recreate", timeout=BUILD_S)  # there is nothing new here
        assert_serves(stack)
    assert stack.inspect("scheduler")["Id"] != before
    assert resident(stack) >= 1


def test_while_the_scheduler_is_away_calls_are_unavailable(stack: Stack) -> None:
    stack.compose("stop", "scheduler")
    with stack.client() as client, pytest.raises(Unavailable):
        client.complete(messages=FRANCE)
    assert stack.inspect("executor")["State"]["Health"]["Status"] == "healthy"
    stack.compose("start", "scheduler")
    assert_serves(stack)


def test_a_stop_is_orderly(stack: Stack) -> None:
    began = time.monotonic()
    stack.compose("stop", "scheduler", "executor")
    assert time.monotonic() - began < 40, "the grace of a kill was used up"
    assert [stack.inspect(service)["State"]["ExitCode"] for service in SERVICES] == [0, 0]


def test_down_keeps_the_model_and_the_next_up_needs_no_network(stack: Stack) -> None:
    stack.compose("down")
    assert PROJECT in stack.run("docker", "volume", "inspect", f"{PROJECT}_models")
    stack.up(extra="offline.yaml")
    assert "download" not in stack.compose("logs", "model")
    assert_serves(stack)


@pytest.fixture(scope="module")
def relieved(stack: Stack) -> Iterator[Stack]:
    """The same project with compose.standby.yaml."""
    stack.compose("down")
    made = Stack(stack.policies, "compose.standby.yaml")
    try:
        made.up()
        yield made
    finally:
        print(made.compose("logs", "--no-color", "--tail=200"))
        made.compose("down")


def test_a_new_scheduler_stands_by_before_the_old_one_goes(relieved: Stack, alone: tuple[int, ...]) -> None:
    before = relieved.inspect("scheduler")["Id"]
    with riding(relieved, alone):
        assert relieved.run("deploy/upgrade.sh", timeout=BUILD_S).endswith("upgrade: the new scheduler serves\n")
    assert relieved.inspect("scheduler")["Id"] != before
    assert resident(relieved) >= 1
    assert_serves(relieved)


def test_a_broken_scheduler_leaves_the_old_one_alone(relieved: Stack, alone: tuple[int, ...]) -> None:
    before = relieved.inspect("scheduler")
    with riding(relieved, alone):
        said = relieved.run("deploy/upgrade.sh", extra="broken.yaml", expect=1, timeout=BUILD_S)
    assert "there is no policy 'no-such-policy'" in said
    assert said.endswith("the old one goes on\n")
    after = relieved.inspect("scheduler")
    assert (after["Id"], after["State"]["StartedAt"]) == (before["Id"], before["State"]["StartedAt"])


def test_a_second_scheduler_stands_by_for_a_crash(relieved: Stack, alone: tuple[int, ...]) -> None:
    serving = relieved.inspect("scheduler")["Id"]
    relieved.compose("up", "--detach", "--no-recreate", "--scale=scheduler=2", "--wait", timeout=UP_S)
    with riding(relieved, alone):
        relieved.run("docker", "exec", serving, "sh", "-c", KILL)
        assert_serves(relieved)
    assert resident(relieved) >= 1
