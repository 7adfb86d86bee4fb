"""What an operator asks of a bus that runs."""

from __future__ import annotations

import grpc

from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc
from tests.harness import Bus


def set_policy(bus: Bus, name: str, **parameters: str) -> None:
    """The policy `name` decides from the next step on; parameters are written as on the command line."""
    with grpc.insecure_channel(bus.scheduler.facts["admin_listen"]) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        stub.SetPolicy(pb.SetPolicyRequest(name=name, parameters=parameters), timeout=10)
