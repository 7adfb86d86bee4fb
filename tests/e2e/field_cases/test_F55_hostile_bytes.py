"""Bytes that are no message, at every open port, and files that hold code: nothing of them is ever run."""

from __future__ import annotations

import json
import os
import pickle
import random
import socket
import struct
from pathlib import Path
from typing import Any

import grpc
import pytest

from citybus.admin.v1 import admin_pb2
from citybus.executor.v1 import executor_pb2
from citybus.v1 import generation_pb2
from executor_svc.config import Config
from tests.checkpoints import write_json, write_tiny
from tests.e2e.field_cases.field import Field
from tests.e2e.field_cases.starting import start_refused
from tests.harness import Service

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
LIBRARY = ("/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
ENDLESS = "/citybus.admin.v1.AdminService/WatchEvents"
"""Streams until its caller has seen enough."""


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def pickles(marker: Path) -> list[bytes]:
    return [pickle.dumps(Bomb(marker), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]


def noise(count: int) -> list[bytes]:
    chance = random.Random(55)
    return [chance.randbytes(chance.choice((1, 9, 64, 1000, 70_000))) for _ in range(count)]


def truncated() -> list[bytes]:
    """Beginnings of good messages."""
    messages: list[Any] = [
        generation_pb2.GenerateRequest(
            text="hello", stopping=generation_pb2.StopParams(stop=["a", "b"]), tenant="t" * 40
        ),
        executor_pb2.ExecuteRequest(open=executor_pb2.OpenSession(epoch=b"e" * 16)),
        executor_pb2.ExecuteRequest(plan=executor_pb2.StepPlan(term=1, step=2, ids=[1, 2, 3], num_tokens=[1, 1, 1])),
    ]
    wholes = [message.SerializeToString() for message in messages]
    return [whole[:length] for whole in wholes for length in range(1, len(whole), 3)]


def throw(address: str, payload: bytes) -> None:
    """Send raw bytes, and wait until they are answered, refused or ignored for a moment."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.settimeout(0.05)
        try:
            connection.sendall(payload)
            while connection.recv(1 << 16):
                pass
        except OSError:
            pass


def call(address: str, method: str, payload: bytes, timeout_s: float = 10) -> grpc.StatusCode:
    """The status of a call whose message is `payload`."""
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stream: Any = channel.stream_stream(method)
        try:
            list(stream(iter([payload]), timeout=timeout_s))
        except grpc.RpcError as error:
            status: grpc.StatusCode = error.code()
            return status
    return grpc.StatusCode.OK


def methods(module: Any) -> list[str]:
    services = module.DESCRIPTOR.services_by_name.values()
    return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]


def metrics_address(service: Service) -> str:
    return f"127.0.0.1:{service.facts['metrics_port']}"


def test_F55_every_port_survives_bytes_that_are_no_message(tiny_field: Field, tmp_path: Path) -> None:
    marker, bus = tmp_path / "marker", tiny_field.bus
    reference = tiny_field.reference([5, 6, 7], 250)
    neighbour = tiny_field.start([5, 6, 7], 250)
    pickle.loads(pickles(tmp_path / "control")[0])
    assert (tmp_path / "control").exists(), "the payload does what it should, where it is let"
    payloads = pickles(marker) + noise(8) + [HTTP2_PREFACE + EMPTY_SETTINGS + part for part in noise(4)]
    ports = [bus.address, bus.scheduler.facts["admin_listen"], bus.executor.address]
    for address in (*ports, metrics_address(bus.scheduler), metrics_address(bus.executor)):
        for payload in payloads:
            throw(address, payload)
    assert not marker.exists()
    assert neighbour.read().token_ids == reference
    check_alive(tiny_field)


def test_F55_every_method_refuses_what_is_no_message(tiny_field: Field, tmp_path: Path) -> None:
    marker, bus = tmp_path / "marker", tiny_field.bus
    payloads = pickles(marker) + noise(6) + truncated()
    ports = {
        bus.address: (*methods(generation_pb2), *LIBRARY),
        bus.scheduler.facts["admin_listen"]: (*methods(admin_pb2), *LIBRARY),
        bus.executor.address: (*methods(executor_pb2), *LIBRARY),
    }
    seen = {
        call(address, method, payload)
        for address in ports
        for method in ports[address]
        for payload in payloads
        if method != ENDLESS
    }
    assert grpc.StatusCode.INVALID_ARGUMENT in seen
    assert not seen & {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}, seen
    watches = {call(bus.scheduler.facts["admin_listen"], ENDLESS, payload, 0.2) for payload in payloads}
    assert watches <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert not marker.exists()
    check_alive(tiny_field)


def check_alive(field: Field) -> None:
    """Both processes are those that were started, and neither met with an error of its own."""
    for service in (field.bus.scheduler, field.bus.executor):
        assert service.process.poll() is None
        assert [entry for entry in service.events() if entry["level"] in ("error", "critical")] == []
        assert "Traceback" not in service.log.read_text()


def test_F55_weights_in_formats_that_hold_code_are_not_read(tmp_path: Path) -> None:
    marker, folder = tmp_path / "marker", write_tiny(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "consolidated.00.pth"):
        (folder / name).write_bytes(pickles(marker)[-1])
    assert "a format that is not read (consolidated.00.pth)" in start_refused("executor_svc", folder)
    assert not marker.exists()


def lying_header(claims: dict[str, Any]) -> bytes:
    header = json.dumps(claims).encode()
    return struct.pack("<Q", len(header)) + header + bytes(64)


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 2**63 - 1) + b"{}",
        lying_header({"lm_head.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 10**9]}}),
        pickle.dumps({"lm_head.weight": 1}),
    ],
    ids=["endless_header", "tensor_past_the_end", "pickle"],
)
def test_F55_weights_whose_header_lies_are_not_read(tmp_path: Path, content: bytes) -> None:
    folder = write_tiny(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in start_refused("executor_svc", folder)


def test_F55_code_that_came_with_a_model_is_not_run(tmp_path: Path) -> None:
    marker, folder = tmp_path / "marker", write_tiny(tmp_path / "model")
    code = f"import os\nos.mkdir({str(marker)!r})\n"
    for name in ("modeling_own.py", "configuration_own.py", "sitecustomize.py"):
        (folder / name).write_text(code)
    config = json.loads((folder / "config.json").read_text())
    own = {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM", "AutoConfig": "configuration_own.OwnConfig"}
    write_json(folder / "config.json", config | {"architectures": ["OwnForCausalLM"], "auto_map": own})
    assert "OwnForCausalLM" in start_refused("executor_svc", folder)
    assert not marker.exists()


def test_F55_executor_listens_to_its_own_machine_unless_it_is_told_otherwise() -> None:
    assert Config(model=Path()).listen.startswith("127.0.0.1:")
    assert Config(model=Path()).metrics_listen == ""
