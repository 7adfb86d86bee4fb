"""An empty prompt is refused, or is the begin token of a model that has one."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from citybus import InvalidRequest
from citybus.v1 import generation_pb2 as pb
from tests.e2e.field_cases.field import Field
from tests.e2e.field_cases.wire import send, status


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": ""}, "text: the prompt is empty"),
        ({"token_ids": []}, "tokens: the prompt is empty"),
        ({"messages": []}, r"chat\.messages: there must be 1"),
        ({"messages": [{"role": "user", "content": ""}]}, r"chat\.messages: the prompt is empty"),
    ],
)
@pytest.mark.parametrize("model", ["bare_field", "chain_field"], ids=["without_bos", "with_bos"])
def test_F13_empty_prompt(request: pytest.FixtureRequest, model: str, options: dict[str, Any], words: str) -> None:
    field: Field = request.getfixturevalue(model)
    if model == "chain_field" and "prompt" in options:
        completion = field.client.complete(**options, temperature=0)
        assert completion.finish.usage.prompt_tokens == completion.finish.usage.completion_tokens == 1
    else:
        with pytest.raises(InvalidRequest, match=words):
            field.client.complete(**options, temperature=0)


def test_F13_no_prompt_at_all(bare_field: Field) -> None:
    with status(grpc.StatusCode.INVALID_ARGUMENT, "prompt is missing"):
        send(bare_field.bus.address, b"")
    with status(grpc.StatusCode.INVALID_ARGUMENT, "tokens", "empty"):
        send(bare_field.bus.address, pb.GenerateRequest(tokens=pb.TokenPrompt()).SerializeToString())


def test_F13_empty_prompt_beside_a_good_one_fails_alone(bare_field: Field) -> None:
    with bare_field.client.generate(token_ids=[ord("@")], max_tokens=60, temperature=0, ignore_eos=True) as stream:
        next(stream)
        with pytest.raises(InvalidRequest):
            bare_field.client.complete("", temperature=0)
        assert sum(len(delta.token_ids) for delta in stream) == 59
