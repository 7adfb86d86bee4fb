"""Refuses what a message holds beyond its fields.

protobuf drops fields that it does not know. Of a request that would be a wish ignored in silence: a client of another
API that sends tools, or one that is newer than the server, is told instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from common.errors import InvalidRequest

_MAX_SEARCHED_BYTES = 1 << 18
"""In a larger message, no unknown field is looked for by name: that takes a copy, and memory for each such field."""


def refuse_unknown_fields(message: Message) -> None:
    """Raises `InvalidRequest` that names the message and the number of a field that it does not have.

    A message that is refused has lost those fields.
    """
    num_bytes = message.ByteSize()
    whole = _copy(message) if num_bytes <= _MAX_SEARCHED_BYTES else None
    message.DiscardUnknownFields()
    num_unknown = num_bytes - message.ByteSize()
    if not num_unknown:
        return
    if whole is None:
        raise InvalidRequest(
            f"{message.DESCRIPTOR.full_name}: {num_unknown} bytes are in fields that this server does not know; "
            "leave them out"
        )
    name, number = next(_unknown_fields(whole))
    raise InvalidRequest(f"{name} has no field {number} at this server; leave it out, as it would be ignored")


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


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
