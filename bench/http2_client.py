"""A gRPC client that does as little as it can for a message: 1,000 streams must not cost more to read than to serve.

HTTP/2 (RFC 9113) over one connection, for calls with one request and a stream of responses. Headers are sent as
literals (RFC 7541) and never read: whether a call went well is in its messages.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable
from typing import NamedTuple

GENERATE = "/citybus.v1.GenerationService/Generate"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, _RST_STREAM, SETTINGS, PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, END_HEADERS, _ACK = 1, 4, 1
_HEADER_TABLE_SIZE, _INITIAL_WINDOW_SIZE = 1, 4
_LARGEST_WINDOW, _FIRST_WINDOW = 2**31 - 1, 65_535
_FRAME, _MESSAGE = struct.Struct(">BHBBI"), struct.Struct(">BI")
"""Before a frame: length (in two parts), kind, flags, stream. Before a gRPC message: compressed or not, length."""

OnMessage = Callable[[bytes], None]
OnEnd = Callable[[], None]


class _Call(NamedTuple):
    """Who hears of an answer."""

    on_message: OnMessage
    on_end: OnEnd


class Http2Client(asyncio.Protocol):
    """One connection. Flow control never holds a server up before it has sent two gigabytes.

    `call` may send some 500 bytes in 100 calls: a server's first window for what it reads is not looked at.
    """

    def __init__(self, authority: str) -> None:
        self._authority = authority
        self._rest = b""
        self._ids = itertools.count(1, 2)
        self._calls: dict[int, _Call] = {}
        self._parts: dict[int, bytes] = {}
        self._lost = False
        self.broken = 0
        """Calls that ended by a reset, or were open when the connection ended."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = struct.pack(">HIHI", _HEADER_TABLE_SIZE, 0, _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW)
        window = struct.pack(">I", _LARGEST_WINDOW - _FIRST_WINDOW)
        transport.write(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(_WINDOW_UPDATE, 0, 0, window))

    def call(self, path: str, request: bytes, on_message: OnMessage, on_end: OnEnd = lambda: None) -> None:
        """Call the method at `path` ("/package.Service/Method"); every message of the answer goes to `on_message`, and
        `on_end` is called once: when the stream has ended, in whatever way, or the connection has.
        """
        stream = next(self._ids)
        self._calls[stream] = _Call(on_message, on_end)
        block = header_block(path, self._authority)
        message = _MESSAGE.pack(0, len(request)) + request
        if self._lost:
            self._end_all()
            return
        self._transport.write(frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, _END_STREAM, stream, message))

    def close(self) -> None:
        """End the connection, and every call with it."""
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._end_all()

    def _end_all(self) -> None:
        self.broken += len(self._calls)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.on_end()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        at = 0
        while len(data) - at >= _FRAME.size:
            high, low, kind, flags, stream = _FRAME.unpack_from(data, at)
            start = at + _FRAME.size
            after = start + (high << 16 | low)
            if len(data) < after:
                break
            self._take(kind, flags, stream, data[start:after])
            at = after
        self._rest = data[at:]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._take_data(stream, payload)
        elif kind in (SETTINGS, PING) and not flags & _ACK:
            self._transport.write(frame(kind, _ACK, 0, payload if kind == PING else b""))
        elif kind == _RST_STREAM or (kind == HEADERS and flags & _END_STREAM):
            call = self._calls.pop(stream, None)
            if call is not None:
                self.broken += kind == _RST_STREAM
                call.on_end()
        elif kind == _GOAWAY:
            self._transport.close()

    def _take_data(self, stream: int, payload: bytes) -> None:
        """Messages, the last of which may go on in the next frame."""
        payload = self._parts.pop(stream, b"") + payload
        at = 0
        while len(payload) - at >= _MESSAGE.size:
            start = at + _MESSAGE.size
            after = start + _MESSAGE.unpack_from(payload, at)[1]
            if len(payload) < after:
                break
            self._calls[stream].on_message(payload[start:after])
            at = after
        if at < len(payload):
            self._parts[stream] = payload[at:]


async def connect(address: str) -> Http2Client:
    """A connection to "host:port"."""
    host, _, port = address.rpartition(":")
    _, client = await asyncio.get_running_loop().create_connection(lambda: Http2Client(address), host, int(port))
    return client


def header_block(path: str, authority: str) -> bytes:
    """The headers of a call, each a literal that is not indexed (RFC 7541, 6.2.2)."""
    headers = {":method": "POST", ":scheme": "http", ":path": path, ":authority": authority}
    headers |= {"te": "trailers", "content-type": "application/grpc"}
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame of HTTP/2 (RFC 9113, 4.1)."""
    return _FRAME.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _text(text: str) -> bytes:
    """A string literal of fewer than 127 bytes, without Huffman coding."""
    return bytes((len(text),)) + text.encode()
