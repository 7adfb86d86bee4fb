"""The token that ends an answer is never part of its text; other special tokens are, where they were asked for."""

from __future__ import annotations

import pytest

from citybus import FinishReason
from tests.checkpoints import EOS
from tests.e2e.field_cases.field import Field


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("model", ["chain_field", "bare_field"], ids=["eos_special", "eos_not_special"])
def test_F04_end_token_is_never_shown(request: pytest.FixtureRequest, model: str, skip: bool) -> None:
    field: Field = request.getfixturevalue(model)
    with field.client.generate(token_ids=[ord("!")], temperature=0, skip_special_tokens=skip) as stream:
        streamed = "".join(delta.text for delta in stream)
    assert streamed == "hi"
    assert (stream.finish.reason, stream.finish.stop_token_id) == (FinishReason.STOP, EOS)
    assert stream.finish.usage.completion_tokens == 3
    assert field.client.complete(token_ids=[ord("!")], temperature=0, skip_special_tokens=skip).text == "hi"


@pytest.mark.parametrize(("skip", "text"), [(True, "uv"), (False, "u<|im_end|>v")])
def test_F04_special_token_in_the_middle_is_shown_on_request(chain_field: Field, skip: bool, text: str) -> None:
    completion = chain_field.client.complete(token_ids=[ord("%")], temperature=0, skip_special_tokens=skip)
    assert completion.text == text
    assert completion.finish.stop_token_id == EOS
