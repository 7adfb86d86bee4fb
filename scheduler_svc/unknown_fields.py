"""Refuses what a message holds beyond its fields.

protobuf drops fields that it does not know. Of a request that would be a wish ignored in silence: a client of another
API that sends tools, or one that is newer than the server, is told instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from common.errors import InvalidRequest

_MAX_LISTED_BYTES = 1 << 18
"""More bytes than these in unknown fields are refused without naming one: each field listed takes memory of its own."""


def refuse_unknown_fields(message: Message) -> None:
    """Raises `InvalidRequest` that names the message and the number of a field that it does not have."""
    num_bytes = _num_unknown_bytes(message)
    if num_bytes > _MAX_LISTED_BYTES:
        name = message.DESCRIPTOR.full_name
        raise InvalidRequest(f"{name}: {num_bytes} bytes are in fields that this server does not know; leave them out")
    if num_bytes:
        name, number = next(_unknown_fields(message))
        raise InvalidRequest(f"{name} has no field {number} at this server; leave it out, as it would be ignored")


def _num_unknown_bytes(message: Message) -> int:
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return message.ByteSize() - known.ByteSize()


def _unknown_fields(message: Message) -> Iterator[tuple[str, int]]:
    """(full name of the message, field number) of each unknown field, here and below."""
    unknown = UnknownFieldSet(message)
    for index in range(len(unknown)):
        yield message.DESCRIPTOR.full_name, unknown[index].field_number
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:  # no map here holds messages
            continue
        for inner in value if field.is_repeated else [value]:
            yield from _unknown_fields(inner)
