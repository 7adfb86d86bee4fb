"""Starts the real services as processes, and ends them whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from prometheus_client.parser import text_string_to_metric_families

from citybus import Client, Completion
from citybus.admin.v1 import admin_pb2, admin_pb2_grpc
from citybus.executor.v1 import executor_pb2, executor_pb2_grpc
from citybus.processes import child_command
from tests.nursery import Forked, nursery_of

ROOT = Path(__file__).resolve().parents[1]
START_S = 60.0
IDLE_S = 10.0


class Service:
    """One service as a process, on the ports it found free; `restart` takes the same ones again.

    The first process is forked. Each that follows is started from the command line, and so shares nothing with it.
    """

    def __init__(self, module: str, log: Path, *flags: str) -> None:
        self.module = module
        self.log = log
        self.flags = flags
        self.facts: dict[str, Any] = {}
        seen = len(self.events())
        self.process: Forked | subprocess.Popen[bytes] = nursery_of(module).fork(
            [*flags, "--listen", "127.0.0.1:0"], log
        )
        self._wait_serving(seen)

    @property
    def address(self) -> str:
        """Where it listens."""
        return str(self.facts["listen"])

    def restart(self) -> None:
        """Start again, after the process has ended, on the same ports."""
        self.process.wait(timeout=START_S)
        seen = len(self.events())
        self.process = self._launch()
        self._wait_serving(seen)

    def stand_by(self) -> subprocess.Popen[bytes]:
        """Start a second process for the same ports, and wait until it waits for the end of the first."""
        seen = len(self.events("standby"))
        successor = self._launch()
        wait_until(lambda: len(self.events("standby")) > seen, f"{self.module} stands by", START_S)
        return successor

    def succeed(self, successor: subprocess.Popen[bytes]) -> None:
        """Kill the process, and wait until the one that stood by serves in its place."""
        seen = len(self.events())
        self.kill()
        self.process = successor
        self._wait_serving(seen)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all samples that have `labels`; 0 where there is none."""
        url = f"http://127.0.0.1:{self.facts['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        samples = [sample for family in families for sample in family.samples if sample.name == f"citybus:{name}"]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def send(self, signum: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(signum)

    def terminate(self) -> int:
        """Ask the process to end; its exit status."""
        self.process.terminate()
        return self.process.wait(timeout=START_S)

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        self.process.kill()
        self.process.wait(timeout=START_S)

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """What it has logged, or what of that is called `name`."""
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [entry for entry in entries if name in (None, entry.get("event"))]

    def _launch(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with self.log.open("ab") as stderr:
            return subprocess.Popen(
                child_command([self.module, *self.flags, *self._same_ports()]),
                cwd=ROOT,
                stderr=stderr,
                env=environment,
            )

    def _same_ports(self) -> list[str]:
        ports = ["--listen", self.address]
        if "admin_listen" in self.facts:
            ports += ["--admin-listen", self.facts["admin_listen"]]
        return ports

    def _wait_serving(self, seen: int) -> None:
        try:
            wait_until(lambda: self._is_serving(seen), f"{self.module} serves", START_S)
        except BaseException:
            self.kill()
            raise

    def _is_serving(self, seen: int) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"{self.module} ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")
        serving = [entry for entry in self.events()[seen:] if entry.get("event") == "serving"]
        if serving:
            self.facts = serving[-1]
        return bool(serving)


class Bus:
    """A scheduler and an executor; flags as on the command line."""

    def __init__(
        self, model: Path, folder: Path, executor: tuple[str, ...] = (), scheduler: tuple[str, ...] = ()
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.plan_log = folder / "plans.jsonl"
        self.executor = Service("executor_svc", folder / "executor.log", "--model", str(model), *executor)
        try:
            self.scheduler = Service(
                "scheduler_svc",
                folder / "scheduler.log",
                *("--model", str(model), "--executor", self.executor.address, "--admin-listen", "127.0.0.1:0"),
                *("--plan-log", str(self.plan_log), *scheduler),
            )
        except BaseException:
            self.executor.kill()
            raise

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.scheduler.address

    def close(self) -> None:
        """End both processes."""
        try:
            self.scheduler.kill()
        finally:
            self.executor.kill()

    def status(self) -> admin_pb2.GetStatusResponse:
        """One reading of the scheduler's state."""
        with grpc.insecure_channel(self.scheduler.facts["admin_listen"]) as channel:
            return admin_pb2_grpc.AdminServiceStub(channel).GetStatus(admin_pb2.GetStatusRequest(), timeout=10)

    def resident(self) -> list[int]:
        """Ids of the sequences the executor holds."""
        with grpc.insecure_channel(self.executor.address) as channel:
            pages = executor_pb2_grpc.ExecutorServiceStub(channel).Reconcile(
                executor_pb2.ReconcileRequest(), timeout=10
            )
            return [sequence.id for page in pages for sequence in page.sequences]

    def wait_idle(self, timeout_s: float = IDLE_S) -> None:
        """Wait until nothing runs, waits, is held or is resident."""

        def idle() -> bool:
            state = self.status()
            return state.running == state.waiting == state.pool.held == 0 and not self.resident()

        wait_until(idle, "the bus is idle", timeout_s)

    def plans(self) -> list[dict[str, Any]]:
        """Every plan so far, from the plan log."""
        return [json.loads(line) for line in self.plan_log.read_text(encoding="utf-8").splitlines()]


@contextmanager
def running_bus(
    model: Path, folder: Path, *, executor: tuple[str, ...] = (), scheduler: tuple[str, ...] = ()
) -> Iterator[Bus]:
    """A bus that is ready for requests, and gone afterwards."""
    bus = Bus(model, folder, executor, scheduler)
    try:
        with Client(bus.address) as client:
            client.wait_ready(START_S)
        yield bus
    finally:
        bus.close()


def canary(client: Client, expected: tuple[int, ...] | None = None) -> Completion:
    """A short greedy request that must still be answered, with the same tokens as ever."""
    completion = client.complete(token_ids=[1, 2, 3, 4, 5], temperature=0.0, max_tokens=5, ignore_eos=True)
    assert len(completion.token_ids) == 5
    assert expected is None or completion.token_ids == expected
    return completion


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Wait until `condition` holds. Raises AssertionError after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.02)
