"""Operating a scheduler that runs, through its admin port and the commands for it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from citybus import Client, Stream
from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc
from citybus.errors import Unavailable
from tests.harness import Bus, running_bus, wait_until

YOUNGEST = """
from scheduler_svc.core.policy import Policy

class Youngest(Policy):
    '''The youngest boards first.'''

    name = "youngest"

    def admission_order(self, waiting, step, now):
        return waiting[::-1]
"""
LOOPS = """
from scheduler_svc.core.policy import Policy

class Loops(Policy):
    '''Loops for ever as soon as somebody of the tenant "trigger" waits.'''

    name = "loops"

    def admission_order(self, waiting, step, now):
        while any(view.tenant == "trigger" for view in waiting):
            pass
        return waiting
"""
ONE_SEAT = ("--num-blocks", "2048", "--max-sequences", "1")


def citybus(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "citybus", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def operate(bus: Bus, *arguments: str) -> str:
    """A command that must succeed; what it prints."""
    done = citybus(*arguments, "--admin-address", bus.scheduler.facts["admin_listen"])
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def admin(bus: Bus) -> Iterator[admin_pb2_grpc.AdminServiceStub]:
    with grpc.insecure_channel(bus.scheduler.facts["admin_listen"]) as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


class Watcher:
    """Collects events from another thread."""

    def __init__(self, stub: admin_pb2_grpc.AdminServiceStub) -> None:
        self.events: list[pb.WatchEventsResponse] = []
        self.call = stub.WatchEvents(pb.WatchEventsRequest())
        self.call.initial_metadata()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for event in self.call:
                self.events.append(event)

    def names(self) -> list[str | None]:
        return [event.WhichOneof("event") for event in self.events]


@contextlib.contextmanager
def queue(bus: Bus, tenants: list[str]) -> Iterator[tuple[Stream, list[Stream]]]:
    """Somebody sits on the one seat; one request of each tenant waits."""
    with Client(bus.address) as client, contextlib.ExitStack() as stack:
        sitting = stack.enter_context(client.generate(token_ids=[0], temperature=0.0))
        next(sitting)
        streams = []
        for index, tenant in enumerate(tenants):
            request = client.generate(token_ids=[index], temperature=0.0, max_tokens=3, tenant=tenant)
            streams.append(stack.enter_context(request))
            assert streams[-1].request_id()
        wait_until(lambda: bus.status().waiting == len(streams), "all wait", 10)
        yield sitting, streams


def check_answers(streams: list[Stream]) -> None:
    for index, stream in enumerate(streams):
        assert [token for delta in stream for token in delta.token_ids] == [index + 1, index + 2, index + 3]


def boarded(bus: Bus, count: int) -> list[int]:
    """The last `count` to board, counted from the first of them to arrive."""
    ids = [sequence_id for plan in bus.plans() for sequence_id, _ in plan["new"]][-count:]
    return [sequence_id - min(ids) for sequence_id in ids]


def test_a_policy_of_ones_own_from_the_file_to_the_roll_back(counting: Path, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    flags = ("--policy-folder", str(folder), "--metrics-listen", "127.0.0.1:0")
    with running_bus(counting, tmp_path / "bus", executor=ONE_SEAT, scheduler=flags) as bus, admin(bus) as stub:
        watcher = Watcher(stub)
        (folder / "youngest.py").write_text(YOUNGEST)
        (folder / "loops.py").write_text(LOOPS)
        assert "new code: loops, youngest" in operate(bus, "policy", "reload")
        listed = operate(bus, "policy", "list")
        assert "* fcfs" in listed
        assert "youngest              The youngest boards first. (file youngest.py)" in listed

        with queue(bus, ["a", "b", "c"]) as (sitting, streams):
            assert operate(bus, "policy", "set", "youngest") == "youngest decides now; before: fcfs\n"
            sitting.cancel()
            check_answers(streams)
        assert boarded(bus, 3) == [2, 1, 0]

        with queue(bus, ["a", "trigger", "c"]) as (sitting, streams):
            operate(bus, "policy", "set", "loops")
            sitting.cancel()
            check_answers(streams)
        assert boarded(bus, 3) == [0, 2, 1], "answered by the default, then by youngest, to whom it was rolled back"
        assert "* youngest" in operate(bus, "policy", "list")

        wait_until(lambda: "policy_rolled_back" in watcher.names(), "the event comes", 10)
        assert watcher.names() == ["policies_reloaded", "policy_changed", "policy_changed", "policy_rolled_back"]
        rolled_back = watcher.events[-1].policy_rolled_back
        assert (rolled_back.failed, rolled_back.policy) == ("loops", "youngest")
        assert "did not end within" in rolled_back.reason
        assert [event.number for event in watcher.events] == [2, 3, 4, 5]
        url = f"http://127.0.0.1:{bus.scheduler.facts['metrics_port']}/metrics"
        metrics = urllib.request.urlopen(url, timeout=10).read().decode()
        assert 'citybus:policy_rollbacks_total{policy="loops"} 1.0' in metrics
        assert 'citybus:policy_info{policy="youngest"} 1.0' in metrics
        assert 'citybus:tenant_generation_tokens_total{policy="youngest",tenant="trigger"} ' in metrics

        (folder / "youngest.py").write_text("1 / 0")
        done = citybus("policy", "reload", "--admin-address", bus.scheduler.facts["admin_listen"])
        (reason,) = done.stdout.splitlines()
        assert (done.returncode, reason.startswith("refused youngest.py: ZeroDivisionError")) == (1, True)
        bus.wait_idle()


def test_a_dry_run_changes_nothing_and_says_what_would_differ(counting: Path, tmp_path: Path) -> None:
    with running_bus(counting, tmp_path, executor=ONE_SEAT) as bus, admin(bus) as stub:
        with queue(bus, ["heavy"] * 4 + ["light"]) as (sitting, streams):
            run = _begun(stub, pb.DryRunPolicyRequest(name="shortest_first", duration_ms=5000))
            sitting.cancel()
            check_answers(streams)
            found = run.result(timeout=30)
        assert boarded(bus, 5) == [0, 1, 2, 3, 4]
        assert (found.boarding_steps >= 5, found.fault) == (True, "")
        assert set(found.place_change) <= {"heavy", "light"}
        assert stub.GetPolicy(pb.GetPolicyRequest()).name == "fcfs"
        assert "in which somebody could board" in operate(
            bus, "policy", "dry-run", "fair_share", "output_cost=3", "--seconds", "0.1"
        )


def _begun(stub: admin_pb2_grpc.AdminServiceStub, request: pb.DryRunPolicyRequest) -> Any:
    """A dry run under way; to ask for it again where `_busy` was there first."""
    runs = [stub.DryRunPolicy.future(request)]

    def busy() -> bool:
        if runs[-1].done():
            runs.append(stub.DryRunPolicy.future(request))
        return _busy(stub) and not runs[-1].done()

    wait_until(busy, "the dry run has begun", 10)
    return runs[-1]


def _busy(stub: admin_pb2_grpc.AdminServiceStub) -> bool:
    try:
        stub.DryRunPolicy(pb.DryRunPolicyRequest(name="fcfs", duration_ms=1))
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.ALREADY_EXISTS
    return False


def test_draining_and_what_is_in_flight(counting: Path, tmp_path: Path) -> None:
    with running_bus(counting, tmp_path, executor=ONE_SEAT) as bus, admin(bus) as stub:
        watcher = Watcher(stub)
        with queue(bus, ["a", "b"]) as (sitting, streams), Client(bus.address) as client:
            assert operate(bus, "drain") == "new requests are refused; 3 in flight go on\n"
            with pytest.raises(Unavailable, match="shutting down"):
                client.complete(token_ids=[1], max_tokens=1)
            assert bus.status().draining
            dump = stub.DumpState(pb.DumpStateRequest(limit=2))
            assert (dump.total, len(dump.requests)) == (3, 2)
            seated, waiting = dump.requests
            assert (seated.phase, waiting.phase) == (pb.RequestState.PHASE_RUNNING, pb.RequestState.PHASE_WAITING)
            assert (seated.prompt_tokens, waiting.tenant, waiting.blocks) == (1, "a", 0)
            assert seated.output_tokens >= 1 and seated.blocks >= 1 and seated.age_ms >= waiting.age_ms
            assert operate(bus, "drain", "--resume") == "new requests are taken again\n"
            sitting.cancel()
            check_answers(streams)
            assert client.complete(token_ids=[1], max_tokens=1, temperature=0.0).token_ids == (2,)
        assert watcher.names() == ["draining_changed", "draining_changed"]
        bus.wait_idle()
        assert bus.scheduler.terminate() == 0


def test_what_cannot_be_done_is_said_in_one_line(counting: Path, tmp_path: Path) -> None:
    with running_bus(counting, tmp_path) as bus:
        address = bus.scheduler.facts["admin_listen"]
        for arguments, message in (
            (("set", "fcsf"), "NOT_FOUND: there is no policy 'fcsf'; there are: contiguous, deadline,"),
            (("set", "priority", "ageing_s=0"), "INVALID_ARGUMENT: policy priority: ageing_s must be more than 0"),
            (("set", "priority", "ageing_s"), "'ageing_s': expected PARAMETER=VALUE"),
            (("reload",), "INVALID_ARGUMENT: there is no policy folder"),
            (("dry-run", "fcfs", "--seconds", "601"), "INVALID_ARGUMENT: duration_ms must be"),
        ):
            done = citybus("policy", *arguments, "--admin-address", address)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith("citybus: ") and message in done.stderr and done.stderr.count("\n") == 1


def test_operators_need_the_token(counting: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("open sesame\n")
    with running_bus(counting, tmp_path / "bus", scheduler=("--admin-token-file", str(secret))) as bus:
        address = bus.scheduler.facts["admin_listen"]
        assert bus.status().executor_connected, "the status is open"
        for environment in ({}, {"CITYBUS_ADMIN_TOKEN": "open sesam"}):
            done = citybus("policy", "set", "priority", "--admin-address", address, environment=_with(environment))
            assert (done.returncode, "UNAUTHENTICATED" in done.stderr) == (1, True)
            done = citybus("events", "--admin-address", address, environment=_with(environment))
            assert (done.returncode, "UNAUTHENTICATED" in done.stderr) == (1, True)
        operate(bus, "policy", "set", "priority", "--admin-token-file", str(secret))
        environment = _with({"CITYBUS_ADMIN_TOKEN": "open sesame"})
        done = citybus("policy", "list", "--admin-address", address, environment=environment)
        assert "* priority" in done.stdout


def test_the_token_is_made_where_there_is_none(counting: Path, tmp_path: Path) -> None:
    secret = tmp_path / "run" / "token"
    with running_bus(counting, tmp_path / "bus", scheduler=("--admin-token-file", str(secret))) as bus:
        assert secret.stat().st_mode & 0o777 == 0o600
        environment = _with({"CITYBUS_ADMIN_TOKEN_FILE": str(secret)})
        address = ("--admin-address", bus.scheduler.facts["admin_listen"])
        assert "* fcfs" in citybus("policy", "list", *address, environment=environment).stdout
        assert "UNAUTHENTICATED" in citybus("policy", "list", *address, environment=_with({})).stderr


def test_a_scheduler_does_not_keep_a_token_in_its_environment(counting: Path) -> None:
    command = [sys.executable, "-m", "scheduler_svc", "--model", str(counting), "--listen", "127.0.0.1:0"]
    environment = _with({"CITYBUS_ADMIN_TOKEN": "open sesame"})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "CITYBUS_ADMIN_TOKEN is for operators' commands: set --admin-token-file" in done.stderr
    assert "sesame" not in done.stderr


def _with(extra: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "CITYBUS_ADMIN_TOKEN"} | extra


def test_beyond_its_own_machine_a_scheduler_without_a_token_has_no_operators(counting: Path, tmp_path: Path) -> None:
    with running_bus(counting, tmp_path, scheduler=("--admin-listen", "0.0.0.0:0")) as bus:
        address = bus.scheduler.facts["admin_listen"].replace("0.0.0.0", "127.0.0.1")
        done = citybus("drain", "--admin-address", address)
        assert (done.returncode, "it has to have one" in done.stderr) == (1, True)
        assert json.loads(citybus("status", "--json", "--admin-address", address).stdout)["policy"] == "fcfs"


def test_a_bad_file_does_not_keep_a_scheduler_from_starting(counting: Path, tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "youngest.py").write_text(YOUNGEST)
    (folder / "broken.py").write_text("1 / 0")
    flags = ("--policy-folder", str(folder), "--policy", "youngest")
    with running_bus(counting, tmp_path / "bus", scheduler=flags) as bus:
        assert bus.status().policy == "youngest"
        refused = bus.scheduler.events("policy file refused")
        assert [(entry["file"], entry["reason"]) for entry in refused] == [
            ("broken.py", "ZeroDivisionError: division by zero")
        ]
