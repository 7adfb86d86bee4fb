"""The end of an answer: once, in the last message, and one fixed reason where several would do."""

from __future__ import annotations

import pytest

from citybus import FinishReason
from citybus.v1 import generation_pb2 as pb
from tests.e2e.field_cases.field import Field
from tests.e2e.field_cases.wire import send


def test_F53_only_the_last_message_has_a_finish_and_its_usage(chain_field: Field) -> None:
    request = pb.GenerateRequest(
        text="@", sampling=pb.SamplingParams(temperature=0), output=pb.OutputParams(logprobs=1, echo=True)
    )
    messages = send(chain_field.bus.address, request.SerializeToString())
    assert [message.HasField("finish") for message in messages] == [*[False] * (len(messages) - 1), True]
    assert [message.HasField("prompt") for message in messages] == [True, *[False] * (len(messages) - 1)]
    tokens = [token for message in messages for token in message.token_ids]
    assert len(tokens) == sum(len(message.logprobs) for message in messages)
    assert messages[-1].finish.usage.completion_tokens == len(tokens) == 8
    assert messages[-1].finish.usage.prompt_tokens == len(messages[0].prompt.token_ids) == 2


@pytest.mark.parametrize(
    ("max_tokens", "stop", "reason"),
    [
        (7, [], FinishReason.LENGTH),
        (8, [], FinishReason.STOP),
        (3, ["BC"], FinishReason.STOP),
        (2, ["BC"], FinishReason.LENGTH),
    ],
)
def test_F53_a_stop_wins_over_the_limit_at_the_same_token(
    chain_field: Field, max_tokens: int, stop: list[str], reason: FinishReason
) -> None:
    """ "@" is followed by ABCDEFG and the end token."""
    answer = chain_field.client.complete("@", temperature=0, max_tokens=max_tokens, stop=stop)
    assert answer.finish.reason is reason
    assert answer.finish.usage.completion_tokens == max_tokens
