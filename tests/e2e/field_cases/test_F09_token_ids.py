"""Token ids outside the vocabulary are refused, and disturb nobody who shares the batch."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from citybus import InvalidRequest
from citybus.v1 import generation_pb2 as pb
from tests.checkpoints import VOCAB_SIZE
from tests.e2e.field_cases.field import Field
from tests.e2e.field_cases.wire import field, send, status, varint

PROMPT = [5, 6, 7]
OUTSIDE = [VOCAB_SIZE, VOCAB_SIZE + 1, 2**31, 2**32 - 1]
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 42}


def test_F09_ids_outside_are_refused_while_a_neighbour_gets_its_tokens(tiny_field: Field) -> None:
    reference = tiny_field.reference(PROMPT, 250, **SEEDED)
    with tiny_field.client.generate(token_ids=PROMPT, max_tokens=250, ignore_eos=True, **SEEDED) as neighbour:
        tokens = [*next(neighbour).token_ids]
        for outside in OUTSIDE:
            with pytest.raises(InvalidRequest, match=rf"^tokens: token id {outside} is over {VOCAB_SIZE - 1}"):
                tiny_field.ask([1, outside, 2], 4)
            if outside == OUTSIDE[0]:
                assert tiny_field.bus.status().running == 1, "the neighbour is in the batch meanwhile"
            with pytest.raises(InvalidRequest, match=rf"^stopping\.stop_token_ids: {outside} is over {VOCAB_SIZE - 1}"):
                tiny_field.ask(PROMPT, 4, stop_token_ids=[3, outside])
        tokens += [token for delta in neighbour for token in delta.token_ids]
    assert tuple(tokens) == reference


def test_F09_largest_id_is_accepted(tiny_field: Field) -> None:
    assert len(tiny_field.ask([VOCAB_SIZE - 1], 4).token_ids) == 4
    assert len(tiny_field.ask(PROMPT, 4, stop_token_ids=[VOCAB_SIZE - 1]).token_ids) == 4


@pytest.mark.parametrize("value", [-1, 2**32, 2**63, "abc", 1.5])
@pytest.mark.parametrize("name", ["token_ids", "stop_token_ids"])
def test_F09_what_is_no_id_does_not_leave_the_client(tiny_field: Field, name: str, value: object) -> None:
    options: dict[str, Any] = {"token_ids": PROMPT, name: [value]}
    with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
        tiny_field.client.generate(**options)


def test_F09_negative_id_on_the_wire_is_its_32_bits(tiny_field: Field) -> None:
    minus_one = varint(2**64 - 1)  # as a client without checks encodes -1
    prompt = pb.GenerateRequest(tokens=pb.TokenPrompt(ids=PROMPT)).SerializeToString()
    with status(grpc.StatusCode.INVALID_ARGUMENT, "tokens", str(2**32 - 1)):
        send(tiny_field.bus.address, field(5, field(1, minus_one)))
    with status(grpc.StatusCode.INVALID_ARGUMENT, "stopping.stop_token_ids", str(2**32 - 1)):
        send(tiny_field.bus.address, prompt + field(7, field(3, minus_one)))


def test_F09_id_that_is_a_fraction_on_the_wire_is_no_id(tiny_field: Field) -> None:
    fixed64 = varint(1 << 3 | 1) + bytes(8)  # protobuf: a field of another type is an unknown one
    with status(grpc.StatusCode.INVALID_ARGUMENT, "TokenPrompt has no field 1"):
        send(tiny_field.bus.address, field(5, fixed64))


@pytest.mark.parametrize("value", [-1, 2**32, 2**63, "abc", 1.5])
@pytest.mark.parametrize("name", ["allowed_token_ids", "banned_token_ids", "logit_bias"])
def test_F09_what_is_no_id_of_a_list_does_not_leave_the_client(tiny_field: Field, name: str, value: object) -> None:
    options: dict[str, Any] = {"token_ids": PROMPT, name: {value: 1.0} if name == "logit_bias" else [value]}
    with pytest.raises((ValueError, TypeError), match=f"^{name}: "):
        tiny_field.client.generate(**options)


def test_F09_ids_of_every_list_are_bounded_where_they_are_used(tiny_field: Field) -> None:
    """With min_tokens all of them are used at once, beside a neighbour that gets its tokens."""
    reference = tiny_field.reference(PROMPT, 120, **SEEDED)
    lists: dict[str, Any] = {"logit_bias": {VOCAB_SIZE - 1: 5.0}, "banned_token_ids": [VOCAB_SIZE - 2]}
    ends: dict[str, Any] = {"stop_token_ids": [VOCAB_SIZE - 1], "min_tokens": 2}
    neighbour = tiny_field.start(PROMPT, 120, **SEEDED)
    neighbour.read_some(1)
    answer = tiny_field.ask(PROMPT, 8, logprobs=20, **lists, **ends)
    for outside in OUTSIDE:
        for name in ("logit_bias", "allowed_token_ids", "banned_token_ids"):
            given = {outside: 1.0} if name == "logit_bias" else [1, outside]
            with pytest.raises(InvalidRequest, match=rf"^sampling\.{name}: {outside} is over {VOCAB_SIZE - 1}"):
                tiny_field.ask(PROMPT, 4, **{name: given}, **ends)
    assert len(answer.token_ids) >= 2
    assert neighbour.read().token_ids == reference
