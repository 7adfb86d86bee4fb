"""Fields that a message does not have: refused by name, wherever they are and however many."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from citybus.v1 import generation_pb2 as pb
from common.errors import InvalidRequest
from scheduler_svc.unknown_fields import refuse_unknown_fields
from tests.e2e.field_cases.wire import field, varint


def refusal(message: Message) -> str:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unknown_fields(message)
    return str(caught.value)


def test_known_fields_pass() -> None:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="x")] * 3)
    refuse_unknown_fields(pb.GenerateRequest(chat=chat, sampling=pb.SamplingParams(seed=1), tenant="t"))
    refuse_unknown_fields(pb.GenerateRequest())


@pytest.mark.parametrize("number", [1000, 2**29 - 1])
@pytest.mark.parametrize(
    ("wire_type", "content"), [(0, b"\x01"), (1, bytes(8)), (2, b"\x00"), (5, bytes(4))], ids=lambda value: str(value)
)
def test_field_of_any_kind_is_named(number: int, wire_type: int, content: bytes) -> None:
    raw = varint(number << 3 | wire_type) + content
    expected = f"citybus.v1.GenerateRequest has no field {number} at this server; leave it out, as it would be ignored"
    assert refusal(pb.GenerateRequest.FromString(raw)) == expected
    assert refusal(pb.CancelRequest.FromString(raw)) == expected.replace("GenerateRequest", "CancelRequest")


def test_field_of_an_inner_message_is_named() -> None:
    good, bad = field(1, field(2, b"x")), field(1, field(2, b"x") + field(7, b"y"))
    request = pb.GenerateRequest.FromString(field(4, good + bad + good))
    assert refusal(request).startswith("citybus.v1.ChatMessage has no field 7 ")
    stopping = pb.GenerateRequest.FromString(field(7, field(999, b"y")))
    assert refusal(stopping).startswith("citybus.v1.StopParams has no field 999 ")


def test_field_of_another_wire_type_is_unknown_too() -> None:
    assert " has no field 3 " in refusal(pb.GenerateRequest.FromString(b"\x18\x01"))


def test_field_of_a_large_message_is_refused_without_a_search() -> None:
    """Which would take copies of many megabytes, on the event loop."""
    raw = field(3, b"x" * 2**18) + field(1000, b"y")
    assert refusal(pb.GenerateRequest.FromString(raw)) == (
        "citybus.v1.GenerateRequest: 4 bytes are in fields that this server does not know; leave them out"
    )


def test_millions_of_fields_are_refused_without_being_listed() -> None:
    raw = (varint(1000 << 3 | 2) + b"\x00") * 1_000_000
    assert refusal(pb.GenerateRequest.FromString(raw)) == (
        "citybus.v1.GenerateRequest: 3000000 bytes are in fields that this server does not know; leave them out"
    )
