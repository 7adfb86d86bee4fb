"""A name that a client or an operator sends is looked up, and is never a path."""

from __future__ import annotations

import grpc
import pytest

from citybus import Client, NotFound
from citybus.admin.v1 import admin_pb2, admin_pb2_grpc
from citybus.v1 import generation_pb2 as pb
from tests.e2e.field_cases.field import Field
from tests.e2e.field_cases.wire import send, status

NAMES = (
    "../../etc/passwd",
    "/etc",
    "a/../../b",
    "%2e%2e%2f",
    "..\\..",
    "tiny\0",
    "tiny\n",
    "./tiny",
    "tiny/",
    "org/a-model-of-a-hub",
    "Marker-" + "x" * 1_000_000,
)


@pytest.mark.parametrize("name", NAMES, ids=[name[:10].encode("unicode_escape").decode() for name in NAMES])
def test_F60_model_that_is_not_served(tiny_field: Field, name: str) -> None:
    with Client(tiny_field.bus.address) as client:
        for call in (lambda: client.complete("hi", model=name), lambda: client.count_tokens("hi", model=name)):
            with pytest.raises(NotFound, match=r'^model: not served here; this server answers for "tiny"$'):
                call()
    for service in (tiny_field.bus.scheduler, tiny_field.bus.executor):
        assert name not in service.log.read_text()
    assert tiny_field.metric("request_failures_total", code="NOT_FOUND") >= 1


def test_F60_empty_name_is_the_served_model(tiny_field: Field) -> None:
    assert tiny_field.ask([1, 2, 3], 3, model="").token_ids == tiny_field.ask([1, 2, 3], 3, model="tiny").token_ids


def test_F60_name_that_is_no_text(tiny_field: Field) -> None:
    request = pb.GenerateRequest(text="hi", model="tiny").SerializeToString().replace(b"tiny", b"\xff\xfe/.")
    with status(grpc.StatusCode.INVALID_ARGUMENT):
        send(tiny_field.bus.address, request)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "os", "scheduler_svc.core.policy:Policy", "x" * 10_000]
)
def test_F60_policy_names_are_no_paths_either(tiny_field: Field, name: str) -> None:
    with grpc.insecure_channel(tiny_field.bus.scheduler.facts["admin_listen"]) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        with status(grpc.StatusCode.NOT_FOUND):
            stub.SetPolicy(admin_pb2.SetPolicyRequest(name=name), timeout=10)
        assert stub.GetPolicy(admin_pb2.GetPolicyRequest(), timeout=10).name == "fcfs"
