"""Requests as bytes: what a client of ours would never send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from bench.http2_client import GENERATE
from citybus.v1 import generation_pb2 as pb


def send(address: str, request: bytes) -> list[pb.GenerateResponse]:
    """What the server answers to `request`. Raises `grpc.RpcError`."""
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_stream(GENERATE, response_deserializer=pb.GenerateResponse.FromString)
        return list(call(request, timeout=30))


@contextmanager
def status(code: grpc.StatusCode, *words: str) -> Iterator[None]:
    """The call inside ends with `code`, and its message has all `words`."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    failure: Any = caught.value
    assert failure.code() is code, failure.details()
    assert all(word in failure.details() for word in words), failure.details()


def varint(number: int) -> bytes:
    """The protobuf encoding of a non-negative number of any size."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a message."""
    return varint(number << 3 | 2) + varint(len(content)) + content
