"""Usage and the reason of the end come once, with the last message. (Several answers to a request: not there yet.)"""

from __future__ import annotations

import pytest

from citybus.v1 import generation_pb2 as pb
from tests.checkpoints import EOS
from tests.e2e.field_cases.field import Field
from tests.e2e.field_cases.wire import send

GREEDY = pb.SamplingParams(temperature=0)


def stream(field: Field, **fields: object) -> list[pb.GenerateResponse]:
    request = pb.GenerateRequest(sampling=GREEDY, **fields)  # type: ignore[arg-type]
    return send(field.bus.address, request.SerializeToString())


@pytest.mark.parametrize(
    ("fields", "reason", "completion"),
    [
        ({"text": "@"}, pb.FINISH_REASON_STOP, 8),
        ({"text": "@", "stopping": pb.StopParams(max_tokens=3)}, pb.FINISH_REASON_LENGTH, 3),
        ({"text": "@", "stopping": pb.StopParams(stop=["CD"])}, pb.FINISH_REASON_STOP, 4),
        ({"text": "@", "stopping": pb.StopParams(max_tokens=1)}, pb.FINISH_REASON_LENGTH, 1),
        ({"text": "z"}, pb.FINISH_REASON_STOP, 1),
        ({"chat": pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="@")])}, pb.FINISH_REASON_STOP, 1),
    ],
)
def test_F53_usage_and_reason_come_with_the_last_message_only(
    chain_field: Field, fields: dict[str, object], reason: int, completion: int
) -> None:
    *others, last = stream(chain_field, **fields)
    assert not any(response.HasField("finish") for response in others)
    assert last.finish.reason == reason
    usage = last.finish.usage
    assert usage.completion_tokens == completion == sum(len(response.token_ids) for response in (*others, last))
    again = stream(chain_field, **fields)[-1].finish.usage
    assert (again.prompt_tokens, again.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    assert again.cached_tokens == usage.prompt_tokens - 1


def test_F53_usage_counts_the_prompt_as_count_tokens_does(chain_field: Field) -> None:
    (*_, last) = stream(chain_field, text="hello there")
    assert last.finish.usage.prompt_tokens == chain_field.client.count_tokens("hello there")


def test_F53_end_token_at_the_limit_is_a_stop(chain_field: Field) -> None:
    """The end token and max_tokens at the same token: the end token counts."""
    *_, last = stream(chain_field, text="@", stopping=pb.StopParams(max_tokens=8))
    assert (last.finish.reason, last.finish.stop_token_id) == (pb.FINISH_REASON_STOP, EOS)
