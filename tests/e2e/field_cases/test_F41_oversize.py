"""Oversize input: refused early, while three streams and the probes go on, and without memory that stays.

Nothing here depends on how fast the machine is: what goes on beside an attack is counted, and held against what went on
for as long without one.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from citybus import Client
from tests.e2e.field_cases.field import Field, is_serving
from tests.e2e.field_cases.wire import field as wire_field
from tests.e2e.field_cases.wire import send, status, varint
from tests.harness import Service

MB = 10**6
KEPT_BYTES = 80 * MB
"""What an allocator may keep of a message of 16 MiB that was parsed and copied a few times."""


def text(num_bytes: int) -> bytes:
    return wire_field(3, b"word " * (num_bytes // 5))


def message(content: bytes) -> bytes:
    return wire_field(1, wire_field(1, b"user") + wire_field(2, content))


def nested(depth: int) -> bytes:
    """Groups in groups: what JSON calls deep."""
    return varint(90 << 3 | 3) * depth + varint(90 << 3 | 4) * depth


INVALID, TOO_LARGE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
ATTACKS: dict[str, tuple[Callable[[], bytes], grpc.StatusCode, str]] = {
    "5 MB of text": (lambda: text(5 * MB), INVALID, "the prompt has more than 256 tokens"),
    "27 MB of text": (lambda: text(27 * MB), TOO_LARGE, "larger than max"),
    "100 MB of text": (lambda: text(100 * MB), TOO_LARGE, "larger than max"),
    "a word of 5 MB": (lambda: wire_field(3, b"x" * 5 * MB), INVALID, "the prompt has more than 256 tokens"),
    "a message of 5 MB": (
        lambda: wire_field(4, message(b"word " * MB)),
        INVALID,
        "the prompt has more than 256 tokens",
    ),
    "a million messages": (
        lambda: wire_field(4, message(b"") * MB),
        INVALID,
        "chat.messages: there must be 1 to 4096, not 1000000",
    ),
    "four million token ids": (
        lambda: wire_field(5, wire_field(1, b"\1" * 4 * MB)),
        INVALID,
        "the prompt has 4000000 tokens",
    ),
    "a million unknown fields": (lambda: wire_field(1000, b"") * MB, INVALID, "fields that this server does not know"),
    "groups 90 deep": (lambda: nested(90), INVALID, "has no field 90"),
    "groups 100,000 deep": (lambda: nested(100_000), INVALID, "not a message of this method"),
}


class Neighbours:
    """Three streams that never end, and probes."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self._over = threading.Event()
        self._tokens = [0, 0, 0]
        self._probes = 0
        self._threads = [threading.Thread(target=self._stream, args=(seat,)) for seat in range(3)]
        self._threads.append(threading.Thread(target=self._probe))
        self.failed: list[BaseException] = []

    def __enter__(self) -> Neighbours:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        assert self.failed == []

    def during(self, seconds: float) -> tuple[int, int]:
        """Tokens and probes in so many seconds."""
        before = self.counts()
        time.sleep(seconds)
        after = self.counts()
        return after[0] - before[0], after[1] - before[1]

    def counts(self) -> tuple[int, int]:
        """So far."""
        return sum(self._tokens), self._probes

    def _stream(self, seat: int) -> None:
        try:
            with Client(self._field.bus.address) as client:
                while not self._over.is_set():
                    options = {"token_ids": [seat, 1, 2], "max_tokens": 250, "ignore_eos": True}
                    for delta in client.generate(temperature=0.0, **options):  # type: ignore[arg-type]
                        self._tokens[seat] += len(delta.token_ids)
        except BaseException as error:
            self.failed.append(error)

    def _probe(self) -> None:
        while not self._over.is_set():
            if is_serving(self._field.bus.address):
                self._probes += 1


def resident_bytes(service: Service) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{service.process.pid}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


@contextmanager
def counted(neighbours: Neighbours) -> Iterator[list[float]]:
    """Gives a list that holds seconds, tokens and probes of the block once it is left."""
    started, before = time.monotonic(), neighbours.counts()
    found: list[float] = []
    yield found
    after = neighbours.counts()
    found += [time.monotonic() - started, after[0] - before[0], after[1] - before[1]]


def test_F41_oversize_input_is_refused_while_others_go_on(tiny_field: Field) -> None:
    """In all attacks together, others have a tenth at least of what they have in as much time without one.

    The attacks come from the process that reads the streams, and take most of its time: bench.hostile has the figures.
    """
    bus = tiny_field.bus
    beside: list[list[float]] = []
    with Neighbours(tiny_field) as neighbours:
        usual = neighbours.during(2.0)
        for make, code, words in ATTACKS.values():
            request = make()
            for turn in range(2):
                with counted(neighbours) as found, status(code, words):
                    send(bus.address, request)
                beside.append(found)
                if turn == 0:
                    before = resident_bytes(bus.scheduler)
            assert resident_bytes(bus.scheduler) - before < KEPT_BYTES
    seconds, tokens, probes = (sum(column) for column in zip(*beside, strict=True))
    assert tokens / seconds > usual[0] / 2.0 / 10
    assert probes / seconds > usual[1] / 2.0 / 10


@pytest.mark.parametrize("megabytes", [5, 27])
def test_F41_memory_does_not_grow_from_attack_to_attack(tiny_field: Field, megabytes: int) -> None:
    request, scheduler = text(megabytes * MB), tiny_field.bus.scheduler
    sizes = []
    for _ in range(8):
        with pytest.raises(grpc.RpcError):
            send(tiny_field.bus.address, request)
        sizes.append(resident_bytes(scheduler))
    assert max(sizes[4:]) - max(sizes[:4]) < 2 * megabytes * MB, "kept, four messages take three times as much each"
