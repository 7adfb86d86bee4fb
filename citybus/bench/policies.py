"""The policy of a running scheduler, to be swapped between runs and brought back at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc as pb_grpc

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy by name, and the parameters that differ from its defaults."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)


class LivePolicy:
    """The policy that decides, through the admin service. Calls raise `grpc.RpcError`."""

    def __init__(self, stub: pb_grpc.AdminServiceStub, metadata: tuple[tuple[str, str], ...]) -> None:
        self._stub = stub
        self._metadata = metadata

    def get(self) -> Policy:
        """The one that decides now."""
        found = self._stub.GetPolicy(pb.GetPolicyRequest(), timeout=_TIMEOUT_S, metadata=self._metadata)
        return Policy(found.name, dict(found.parameters))

    def set(self, policy: Policy) -> None:
        """Let another decide from the next step on."""
        request = pb.SetPolicyRequest(name=policy.name, parameters=policy.parameters)
        self._stub.SetPolicy(request, timeout=_TIMEOUT_S, metadata=self._metadata)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Bring the policy of the beginning back at the end, however that comes."""
        before = self.get()
        try:
            yield
        finally:
            self.set(before)
