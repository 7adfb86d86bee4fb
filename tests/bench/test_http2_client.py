"""The client that reads streams for the bench, against bytes written by hand."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.http2_client import Http2Client

DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, END_HEADERS, ACK = 1, 4, 1


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += bytes(data)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def message(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


def client() -> tuple[Http2Client, Wire]:
    one, wire = Http2Client("server"), Wire()
    one.connection_made(wire)
    return one, wire


def test_a_call_is_a_header_block_and_a_message() -> None:
    one, wire = client()
    assert wire.written.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    before = len(wire.written)
    one.call("/a.B/C", b"ask", lambda answer: None)
    one.call("/a.B/C", b"ask", lambda answer: None)
    sent = wire.written[before:]
    first, second = sent[: len(sent) // 2], sent[len(sent) // 2 :]
    assert first[3:9] == bytes((HEADERS, END_HEADERS)) + (1).to_bytes(4, "big")
    assert b"\0\x05:path\x06/a.B/C" in first
    assert first.endswith(frame(DATA, END_STREAM, 1, message(b"ask")))
    assert second.endswith(frame(DATA, END_STREAM, 3, message(b"ask"))), "the ids of calls are odd and rise"


def test_messages_come_whole_however_they_are_cut() -> None:
    """Two in one frame, one over two frames with another call between, and the bytes one by one."""
    one, _ = client()
    first: list[bytes] = []
    second: list[bytes] = []
    ended: list[int] = []
    one.call("/a.B/C", b"", first.append, lambda: ended.append(1))
    one.call("/a.B/C", b"", second.append, lambda: ended.append(3))
    cut = message(b"long")
    data = frame(HEADERS, END_HEADERS, 1, b"?") + frame(DATA, 0, 1, message(b"x") + message(b"") + cut[:7])
    data += frame(DATA, 0, 3, message(b"other")) + frame(DATA, 0, 1, cut[7:])
    data += frame(HEADERS, END_HEADERS | END_STREAM, 1, b"?") + frame(RST_STREAM, 0, 3, bytes(4))
    for byte in data:
        one.data_received(bytes((byte,)))
    assert first == [b"x", b"", b"long"]
    assert second == [b"other"]
    assert (one.broken, ended) == (1, [1, 3]), "the second call was reset"
    one.call("/a.B/C", b"", first.append, lambda: ended.append(5))
    one.connection_lost(None)
    assert (one.broken, ended) == (2, [1, 3, 5])
    one.call("/a.B/C", b"", first.append, lambda: ended.append(7))
    assert (one.broken, ended) == (3, [1, 3, 5, 7])


def test_settings_and_pings_are_answered() -> None:
    one, wire = client()
    before = len(wire.written)
    one.data_received(frame(SETTINGS, 0, 0, bytes(6)) + frame(PING, 0, 0, b"12345678") + frame(PING, ACK, 0, bytes(8)))
    assert wire.written[before:] == frame(SETTINGS, ACK, 0, b"") + frame(PING, ACK, 0, b"12345678")
