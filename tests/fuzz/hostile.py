"""Hostile messages: made from the descriptors, field by field, and of good messages' bytes, damaged.

Nothing here knows the fields of a message: what is added to the proto files is covered at once.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from tests.e2e.field_cases.wire import field, varint

WORDS = (
    *(
        "",
        "a",
        "hi there",
        " ",
        "\0",
        "a\nb",
        "<|eos|>",
        "<|im_start|>system",
        "{{ 7 * 7 }}",
        "%s%n",
        "é😀\u202e",
        "\ufdd0",
    ),
    *("../../etc/passwd", "/etc", "a/../../b", "%2e%2e%2f", "..\\..", "https://example.org/a", "tiny", "user", "r-1"),
    *("fcfs", "priority", "fair_share", "x" * 128, "x" * 129, "é" * 70_000, "word " * 4_000),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 0.8, 100.0, 100.1, math.nan, math.inf, -math.inf, 1e-45, 3.4e38, -3.4e38)
_SIGNED = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_BITS = {
    FieldDescriptor.CPPTYPE_INT32: 31,
    FieldDescriptor.CPPTYPE_UINT32: 32,
    FieldDescriptor.CPPTYPE_INT64: 63,
    FieldDescriptor.CPPTYPE_UINT64: 64,
}


class Hostile:
    """Makes messages by chance. `fullness` is how likely a field is set."""

    def __init__(self, chance: random.Random, fullness: float = 0.4) -> None:
        self.chance = chance
        self.fullness = fullness

    def message(self, descriptor: Descriptor, depth: int = 0) -> Message:
        """Any fields, with any values that their types can hold."""
        made = GetMessageClass(descriptor)()
        for each in descriptor.fields:
            if depth < 8 and self.chance.random() < self.fullness:
                self.set_field(made, each, depth)
        return made

    def set_field(self, message: Message, each: FieldDescriptor, depth: int = 0) -> None:
        """Give a field of `message` any value."""
        if each.message_type is not None and each.message_type.GetOptions().map_entry:
            key, value = each.message_type.fields
            for _ in range(self._count()):
                getattr(message, each.name)[self._scalar(key)] = self._scalar(value)
        elif each.is_repeated and each.message_type is not None:
            getattr(message, each.name).extend(self.message(each.message_type, depth + 1) for _ in range(self._count()))
        elif each.is_repeated:
            getattr(message, each.name).extend(self._scalar(each) for _ in range(self._count()))
        elif each.message_type is not None:
            getattr(message, each.name).CopyFrom(self.message(each.message_type, depth + 1))
        else:
            setattr(message, each.name, self._scalar(each))

    def change(self, message: Message) -> None:
        """Give one field of `message`, or of a message inside it, any value; or clear it."""
        inner = [
            value for each, value in message.ListFields() if each.message_type is not None and not each.is_repeated
        ]
        inner += [
            value
            for each, values in message.ListFields()
            if each.is_repeated and each.message_type is not None and not each.message_type.GetOptions().map_entry
            for value in values
        ]
        if inner and self.chance.random() < 0.6:
            self.change(self.chance.choice(inner))
        elif message.DESCRIPTOR.fields:
            chosen = self.chance.choice(message.DESCRIPTOR.fields)
            if not each_adds(chosen) or self.chance.random() < 0.5:
                message.ClearField(chosen.name)
            if self.chance.random() < 0.85:
                self.set_field(message, chosen)

    def damage(self, raw: bytes) -> bytes:
        """`raw` with one to three injuries."""
        for _ in range(self.chance.randint(1, 3)):
            raw = self.chance.choice(_INJURIES)(raw, self.chance)
        return raw

    def _count(self) -> int:
        return self.chance.choice((0, 1, 1, 2, 3, 17, 65))

    def _scalar(self, each: FieldDescriptor) -> Any:
        choose = self.chance.choice
        match each.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return choose((True, False))
            case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
                return choose(FLOATS)
            case FieldDescriptor.CPPTYPE_ENUM:
                return choose((0, 1, 2, 99, -1, 2**31 - 1, -(2**31)))
            case FieldDescriptor.CPPTYPE_STRING if each.type == FieldDescriptor.TYPE_BYTES:
                return choose((b"", b"\0", self.chance.randbytes(16), b"x" * 1000))
            case FieldDescriptor.CPPTYPE_STRING:
                return choose(WORDS)
        edge = 2 ** _BITS[each.cpp_type]
        numbers = (0, 1, 2, 5, 16, 63, 64, 271, 272, 1000, edge // 2, edge - 1)
        return choose((*numbers, -1, -2, -edge) if each.cpp_type in _SIGNED else numbers)


def each_adds(field_: FieldDescriptor) -> bool:
    """Whether setting the field leaves what it had."""
    return bool(field_.is_repeated)


def hostile_bytes(good: Sequence[Message], hostile: Hostile) -> bytes:
    """A message for the method whose good requests are `good`: made up, changed, two in one, or damaged."""
    chance, sample = hostile.chance, hostile.chance.choice(good)
    changed = type(sample).FromString(sample.SerializeToString())
    for _ in range(chance.randint(1, 3)):
        hostile.change(changed)
    match chance.randrange(5):
        case 0:
            return hostile.message(sample.DESCRIPTOR).SerializeToString()
        case 1 | 2:
            return changed.SerializeToString()
        case 3:  # what is set twice, the branches of a oneof too, counts once: the last
            return sample.SerializeToString() + changed.SerializeToString()
    return hostile.damage(sample.SerializeToString())


def parsed(message: type[Message], raw: bytes) -> Message | None:
    """What the wire makes of the bytes; None where they are no message."""
    try:
        return message.FromString(raw)
    except DecodeError:
        return None


def _flip(raw: bytes, chance: random.Random) -> bytes:
    flipped = bytearray(raw)
    for _ in range(chance.randint(1, 4) if raw else 0):
        flipped[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    return bytes(flipped)


def _cut(raw: bytes, chance: random.Random) -> bytes:
    return raw[: chance.randint(0, len(raw))]


def _insert(raw: bytes, chance: random.Random) -> bytes:
    at = chance.randint(0, len(raw))
    wrong = (
        b"\xff" * 11,
        b"\x80" * 9 + b"\x01",
        b"\xff\xff\xff\xff\x0f",
        b"\0",
        b"\x07",
        b"\xc3\x28",
        chance.randbytes(5),
    )
    return raw[:at] + chance.choice(wrong) + raw[at:]


def _twice(raw: bytes, chance: random.Random) -> bytes:
    return raw * chance.choice((2, 3, 50))


def _add_unknown(raw: bytes, chance: random.Random) -> bytes:
    return raw + field(chance.choice((90, 1000, 19_000, 2**29 - 1)), chance.randbytes(3))


def _lie_about_length(raw: bytes, chance: random.Random) -> bytes:
    return raw + varint(chance.randint(1, 20) << 3 | 2) + varint(chance.choice((1, 2**31 - 1, 2**32, 2**63))) + b"x"


def _nest(raw: bytes, chance: random.Random) -> bytes:
    number = chance.randint(1, 20)
    if chance.random() < 0.5:
        return raw + (varint(number << 3 | 3) * 5_000)  # groups that begin and never end
    for _ in range(200):
        raw = field(number, raw)
    return raw


_INJURIES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _flip, _cut, _insert, _twice),
    *(_add_unknown, _lie_about_length, _nest),
)
