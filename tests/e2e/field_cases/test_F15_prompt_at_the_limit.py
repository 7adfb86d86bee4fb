"""Prompts around the length of the context: never shortened, never refused with numbers that contradict themselves."""

from __future__ import annotations

from typing import Any

import pytest

from citybus import FinishReason, InvalidRequest
from tests.e2e.field_cases.field import Field

L = 64


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 1}, {"max_tokens": 1000}])
@pytest.mark.parametrize("length", [1, 31, L - 2, L - 1])
def test_F15_answer_goes_up_to_the_context(chain_field: Field, length: int, limit: dict[str, Any]) -> None:
    completion = chain_field.client.complete(token_ids=[7] * length, temperature=0, ignore_eos=True, **limit)
    usage = completion.finish.usage
    assert usage.prompt_tokens == length
    assert usage.completion_tokens == len(completion.token_ids) == min(L - length, limit.get("max_tokens", L))
    assert completion.finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 1}, {"max_tokens": 1000}])
@pytest.mark.parametrize("length", [L, L + 1, 10 * L])
def test_F15_prompt_without_room_for_a_token_is_refused(chain_field: Field, length: int, limit: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chain_field.client.complete(token_ids=[7] * length, temperature=0, **limit)
    assert f"the prompt has {length} tokens" in str(caught.value)
    assert f"at most {L - 1} tokens" in str(caught.value)
    assert "-" not in str(caught.value)


@pytest.mark.parametrize("length", [L - 1, L, L + 1, 10 * L])
def test_F15_text_is_not_shortened_either(bare_field: Field, length: int) -> None:
    if length < L:
        completion = bare_field.client.complete("x" * length, temperature=0, ignore_eos=True)
        assert (completion.finish.usage.prompt_tokens, completion.finish.usage.completion_tokens) == (length, 1)
    else:
        with pytest.raises(InvalidRequest, match=f"the prompt has {length} tokens"):
            bare_field.client.complete("x" * length, temperature=0)


@pytest.mark.parametrize("length", [1, L - 1, L, L + 1, 10 * L])
def test_F15_no_answer_at_all_cannot_be_asked_for(chain_field: Field, length: int) -> None:
    with pytest.raises(InvalidRequest, match=r"stopping\.max_tokens must be 1 or more"):
        chain_field.client.complete(token_ids=[7] * length, temperature=0, max_tokens=0)


def test_F15_negative_max_tokens_does_not_leave_the_client(chain_field: Field) -> None:
    with pytest.raises(ValueError, match=r"^max_tokens: "):
        chain_field.client.complete("x", max_tokens=-1)
