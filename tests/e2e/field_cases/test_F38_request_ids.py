"""Ids that callers choose: one live request a tenant and id."""

from __future__ import annotations

import uuid
from typing import Any

import grpc
import pytest

from citybus import AlreadyExists, Cancelled, Client, InvalidRequest
from citybus.v1 import generation_pb2 as pb
from tests.e2e.field_cases.field import Field, Ride
from tests.e2e.field_cases.wire import field as wire_field
from tests.e2e.field_cases.wire import send, status
from tests.harness import wait_until

PROMPT = [50, 60, 70]


def refused(field: Field, request_id: str, **options: Any) -> None:
    """From a connection of its own, which is closed afterwards."""
    with Client(field.bus.address) as other, pytest.raises(AlreadyExists, match="request_id"):
        other.complete(token_ids=PROMPT, request_id=request_id, **options)


def start(field: Field, request_id: str, max_tokens: int = 200, **options: str) -> Ride:
    ride = field.start(PROMPT, max_tokens, request_id=request_id, cache_salt=uuid.uuid4().hex, **options)
    assert ride.request_id == request_id
    return ride


def test_F38_second_while_the_first_runs(tight_field: Field) -> None:
    reference, name = tight_field.reference(PROMPT, 200), uuid.uuid4().hex
    first = start(tight_field, name)
    first.read_some(1)
    for _ in range(3):
        refused(tight_field, name)
    refused(tight_field, name, cache_salt="other")
    assert first.read().token_ids == reference
    assert tight_field.ask(PROMPT, 3, request_id=name).token_ids == reference[:3], "an id is free after the end"


def test_F38_second_while_the_first_is_queued(tight_field: Field) -> None:
    reference, name = tight_field.reference(PROMPT, 20), uuid.uuid4().hex
    with tight_field.paused():
        seated = [tight_field.start([seat, 1], 250) for seat in range(6)]
        queued = start(tight_field, name, 20)
        refused(tight_field, name)
        assert tight_field.bus.status().waiting >= 1
        for ride in seated:
            ride.stream.cancel()
    assert queued.read().token_ids == reference


def test_F38_second_while_the_first_is_preempted(tight_field: Field) -> None:
    reference, name = tight_field.reference(PROMPT, 200), uuid.uuid4().hex
    before = tight_field.bus.status().totals.preemptions
    with tight_field.paused():
        elders = [tight_field.start([seat, 3, 4], 250, cache_salt=uuid.uuid4().hex) for seat in range(5)]
        first = start(tight_field, name)
    wait_until(lambda: tight_field.bus.status().totals.preemptions > before, "the youngest is preempted", 30)
    refused(tight_field, name)
    for ride in elders:
        ride.stream.cancel()
    assert first.read().token_ids == reference


def test_F38_id_of_a_cancelled_request_is_free_once_it_is_gone(tight_field: Field) -> None:
    name = uuid.uuid4().hex
    first = start(tight_field, name)
    first.read_some(1)
    first.stream.cancel()
    with pytest.raises(Cancelled):
        first.read()

    def is_free() -> bool:
        try:
            return len(tight_field.ask(PROMPT, 3, request_id=name).token_ids) == 3
        except AlreadyExists:
            return False

    wait_until(is_free, "the id is free", 5)


def test_F38_tenants_are_independent(tight_field: Field) -> None:
    reference, name = tight_field.reference(PROMPT, 100), uuid.uuid4().hex
    rides = [start(tight_field, name, 100, tenant=tenant) for tenant in ("", "a", "b")]
    refused(tight_field, name, tenant="a")
    rides[1].stream.cancel()
    for ride in (rides[0], rides[2]):
        assert ride.read().token_ids == reference


@pytest.mark.parametrize(
    "request_id", ["", "a b", "a\nb", "a\0", "é", "x" * 129, "x" * 2**20], ids=lambda text: f"{text[:3]!a}x{len(text)}"
)
def test_F38_ids_that_are_refused(tight_field: Field, request_id: str) -> None:
    with pytest.raises(InvalidRequest, match="request_id must be 1 to 128") as caught:
        tight_field.ask(PROMPT, 3, request_id=request_id)
    assert len(str(caught.value)) < 200, "it is not told back"


def test_F38_longest_id_and_bytes_that_are_no_text(tight_field: Field) -> None:
    assert start(tight_field, "~" * 128, 3).read().request_id == "~" * 128
    request = pb.GenerateRequest(tokens=pb.TokenPrompt(ids=PROMPT)).SerializeToString()
    with status(grpc.StatusCode.INVALID_ARGUMENT):
        send(tight_field.bus.address, request + wire_field(1, b"\xff\xfe"))
