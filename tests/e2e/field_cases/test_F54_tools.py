"""Tools are out of scope: a request that brings them is refused, with the message's name and the field's number."""

from __future__ import annotations

import grpc
import pytest

from citybus.v1 import generation_pb2 as pb
from tests.e2e.field_cases.field import Field
from tests.e2e.field_cases.wire import field as wire_field
from tests.e2e.field_cases.wire import send, status, varint

MESSAGE = pb.ChatMessage(role="user", content="@").SerializeToString()
WHOLE = wire_field(4, wire_field(1, MESSAGE))
TOOLS = wire_field(1001, b'{"type": "function", "function": {"name": "f"}}')
TOOL_CHOICE = varint(1002 << 3) + b"\x01"


@pytest.mark.parametrize(
    ("request_bytes", "words"),
    [
        (WHOLE + TOOLS, "citybus.v1.GenerateRequest has no field 1001"),
        (WHOLE + TOOL_CHOICE, "citybus.v1.GenerateRequest has no field 1002"),
        (TOOLS + WHOLE, "citybus.v1.GenerateRequest has no field 1001"),
        (wire_field(4, wire_field(1, MESSAGE) + TOOLS), "citybus.v1.ChatPrompt has no field 1001"),
        (wire_field(4, wire_field(1, MESSAGE + TOOLS)), "citybus.v1.ChatMessage has no field 1001"),
        (WHOLE + wire_field(7, TOOLS), "citybus.v1.StopParams has no field 1001"),
    ],
)
def test_F54_request_with_tools_is_refused(chain_field: Field, request_bytes: bytes, words: str) -> None:
    with status(grpc.StatusCode.INVALID_ARGUMENT, words, "leave it out"):
        send(chain_field.bus.address, request_bytes)


def test_F54_without_them_it_is_answered(chain_field: Field) -> None:
    assert send(chain_field.bus.address, WHOLE)[-1].finish.reason == pb.FINISH_REASON_STOP
