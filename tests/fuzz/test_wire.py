"""10,000 hostile messages to a scheduler and an executor that run, with a canary after each hundred."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from citybus.admin.v1 import admin_pb2 as admin
from citybus.executor.v1 import executor_pb2 as executor
from citybus.v1 import generation_pb2 as pb
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import Field, running_field
from tests.fuzz.hostile import Hostile, hostile_bytes
from tests.harness import Service

BATCHES, PER_BATCH = 100, 100
MAX_GROWTH_BYTES = 64 * 2**20
"""What a process may grow by over the last nine tenths of the messages: allocators keep some, a leak takes more."""

GENERATE = [
    pb.GenerateRequest(text="hi there", sampling=pb.SamplingParams(temperature=0.7, seed=3), request_id="r-1"),
    pb.GenerateRequest(
        tokens=pb.TokenPrompt(ids=[1, 2, 3]), stopping=pb.StopParams(max_tokens=3, stop=["ab"], stop_token_ids=[9])
    ),
    pb.GenerateRequest(
        chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi"), pb.ChatMessage(role="system")]),
        **{
            "tenant": "t",
            "cache_salt": "s",
            "time_limit_ms": 5_000,
            "reconnect_grace_ms": 1,
            "skip_special_tokens": False,
        },
    ),
]
CLIENT: Mapping[str, Sequence[Message]] = {
    "Generate": GENERATE,
    "Attach": [pb.AttachRequest(request_id="r-1", next_index=1), pb.AttachRequest(tenant="t", request_id="a")],
    "Cancel": [pb.CancelRequest(request_id="r-1"), pb.CancelRequest(tenant="t", request_id="a")],
    "CountTokens": [pb.CountTokensRequest(text="hi"), pb.CountTokensRequest(chat=GENERATE[2].chat, model="tiny")],
    "ListModels": [pb.ListModelsRequest()],
}
ADMIN: Mapping[str, Sequence[Message]] = {
    "GetStatus": [admin.GetStatusRequest()],
    "ListPolicies": [admin.ListPoliciesRequest()],
    "GetPolicy": [admin.GetPolicyRequest()],
    "SetPolicy": [
        admin.SetPolicyRequest(name="priority"),
        admin.SetPolicyRequest(name="fair_share", parameters={"a": "1"}),
    ],
    "ReloadPolicies": [admin.ReloadPoliciesRequest()],
    "DryRunPolicy": [admin.DryRunPolicyRequest(name="fcfs", duration_ms=1)],
    "DumpState": [admin.DumpStateRequest(limit=3)],
    "WatchEvents": [admin.WatchEventsRequest()],
    "Resume": [admin.ResumeRequest()],
}
EXECUTOR: Mapping[str, Sequence[Message]] = {
    "Describe": [executor.DescribeRequest()],
    "Reconcile": [executor.ReconcileRequest(page_size=1)],
    "Execute": [
        executor.ExecuteRequest(open=executor.OpenSession(epoch=b"e" * 16)),
        executor.ExecuteRequest(plan=executor.StepPlan(term=1, step=2, ids=[1, 2], num_tokens=[1, 1])),
    ],
}
WAITING = ("WatchEvents", "DryRunPolicy")
"""Go on for as long as their caller wants."""

DOCUMENTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
}


class Target:
    """A bus under fire."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.methods = [
            *(("client", f"/citybus.v1.GenerationService/{name}", good) for name, good in CLIENT.items()),
            *(("client", f"/citybus.v1.GenerationService/{name}", good) for name, good in CLIENT.items()),
            *(("admin", f"/citybus.admin.v1.AdminService/{name}", good) for name, good in ADMIN.items()),
            *(("executor", f"/citybus.executor.v1.ExecutorService/{name}", good) for name, good in EXECUTOR.items()),
        ]
        bus = field.bus
        self.doors = {
            "client": bus.address,
            "admin": bus.scheduler.facts["admin_listen"],
            "executor": bus.executor.address,
        }
        self.pids = {service: service.process.pid for service in (bus.scheduler, bus.executor)}
        self.seen: Counter[grpc.StatusCode] = Counter()
        self.sizes: list[dict[Service, int]] = []
        self.runner = asyncio.Runner()

    def batch(self, chance: random.Random) -> None:
        """A hundred hostile messages at once, then the canary, alone."""
        hostile = Hostile(chance, fullness=chance.choice((0.1, 0.4, 0.9)))
        calls = []
        for _ in range(PER_BATCH):
            door, method, good = chance.choice(self.methods)
            calls.append((door, method, hostile_bytes(good, hostile)))
        self.runner.run(self._send(calls))
        self.field.check()
        self.sizes.append({service: resident_bytes(service) for service in self.pids})

    async def _send(self, calls: Sequence[tuple[str, str, bytes]]) -> None:
        channels = {door: grpc.aio.insecure_channel(address) for door, address in self.doors.items()}
        try:
            await asyncio.gather(*(self._call(channels[door], method, raw) for door, method, raw in calls))
        finally:
            for channel in channels.values():
                await channel.close()

    async def _call(self, channel: grpc.aio.Channel, method: str, raw: bytes) -> None:
        call: Any = channel.stream_stream(method)(iter([raw]))
        try:
            async with asyncio.timeout(0.2 if method.endswith(WAITING) else 60):
                async for _ in call:
                    pass
            code = grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            code = error.code()
            assert code in DOCUMENTED, (method, raw[:2_000], error)
        except TimeoutError:
            assert method.endswith(WAITING), (method, raw[:2_000])
            code = grpc.StatusCode.CANCELLED
            call.cancel()
        self.seen[code] += 1


def resident_bytes(service: Service) -> int:
    """Memory that the process holds now."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return 1024 * int(found[1])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("fuzz")
    model = write_tiny(folder / "tiny", num_layers=1, max_model_len=64)
    with running_field(model, folder / "bus", executor=("--num-blocks", 128, "--max-sequences", 64)) as field:
        made = Target(field)
        with made.runner:
            yield made


def test_ten_thousand_hostile_messages(target: Target) -> None:
    @settings(max_examples=BATCHES, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32 - 1))
    def fire(seed: int) -> None:
        target.batch(random.Random(seed))

    fire()
    assert sum(target.seen.values()) >= BATCHES * PER_BATCH
    assert target.seen.keys() >= {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
    for service, pid in target.pids.items():
        assert service.process.pid == pid and service.process.poll() is None
        assert [entry for entry in service.events() if entry["level"] in ("error", "critical")] == []
        assert "Traceback" not in service.log.read_text()
        settled = max(sizes[service] for sizes in target.sizes[: BATCHES // 10])
        assert target.sizes[-1][service] - settled < MAX_GROWTH_BYTES


def test_hostile_drains_are_undone_by_resume(target: Target) -> None:
    """Apart, as a drain that is understood has every other request refused."""
    hostile = Hostile(random.Random(7))
    address = target.doors["admin"]
    with grpc.insecure_channel(address) as channel:
        drain: Any = channel.unary_unary("/citybus.admin.v1.AdminService/Drain")
        resume: Any = channel.unary_unary("/citybus.admin.v1.AdminService/Resume")
        for _ in range(100):
            try:
                drain(hostile_bytes([admin.DrainRequest()], hostile), timeout=10)
            except grpc.RpcError as error:
                status: Any = error
                assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert target.field.bus.status().draining
        resume(b"", timeout=10)
    target.field.check()
