"""Invalid input has a status and a message that names the field; a fault in a stream ends it with an error at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.http2_client import GENERATE
from citybus.v1 import generation_pb2 as pb
from common.step import StepPlan, StepResult
from tests.checkpoints import write_chain
from tests.contract.wire_executor import Served
from tests.e2e.field_cases.field import Field, InProcess, is_serving, scheduler_field
from tests.e2e.field_cases.wire import field as wire_field
from tests.e2e.field_cases.wire import send, status
from tests.fakes import INFO, FakeExecutor
from tests.harness import wait_until

INVALID = grpc.StatusCode.INVALID_ARGUMENT
COUNT_TOKENS = "/citybus.v1.GenerationService/CountTokens"


def request(**fields: Any) -> bytes:
    return pb.GenerateRequest(**({"text": "@"} | fields)).SerializeToString()


def stopping(**fields: Any) -> bytes:
    return request(stopping=pb.StopParams(**fields))


def sampling(**fields: Any) -> bytes:
    return request(sampling=pb.SamplingParams(**fields))


INPUTS: dict[str, tuple[bytes, grpc.StatusCode, str]] = {
    "no prompt": (b"", INVALID, "prompt is missing"),
    "another model": (request(model="gpt-4"), grpc.StatusCode.NOT_FOUND, "model: not served here"),
    "an over-long prompt": (request(text="x" * 1000), INVALID, "the prompt has 1001 tokens"),
    "no message": (b"\x0a\xff\xff", INVALID, "not a message of this method"),
    "a number as the text": (b"\x18\x01", INVALID, "citybus.v1.GenerateRequest has no field 3"),
    "bytes that are no text": (wire_field(3, b"\xff\xfe"), INVALID, "not a message of this method"),
    "no tokens asked for": (stopping(max_tokens=0), INVALID, "stopping.max_tokens must be 1 or more"),
    "a negative temperature": (sampling(temperature=-1), INVALID, "sampling.temperature must be from 0 to 100"),
    "a temperature that is no number": (sampling(temperature=float("nan")), INVALID, "sampling.temperature"),
    "no share of the likeliest": (sampling(top_p=0), INVALID, "sampling.top_p must be over 0"),
    "a role that is none": (
        request(text="", chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="a b", content="x")])),
        INVALID,
        "chat.messages[0].role",
    ),
    "an empty stop text": (stopping(stop=[""]), INVALID, "stopping.stop: each text"),
    "a stop token outside the vocabulary": (stopping(stop_token_ids=[272]), INVALID, "272 is over 271"),
    "a request id with a space": (request(request_id="a b"), INVALID, "request_id must be"),
    "a billion answers": (request(samples=pb.SampleParams(n=10**9)), INVALID, "samples.n must be from 1 to 64"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_F42_invalid_input_has_a_status_that_names_the_field(chain_field: Field, name: str) -> None:
    raw, code, words = INPUTS[name]
    with status(code, words):
        send(chain_field.bus.address, raw)


def test_F42_a_call_without_a_stream_says_the_same(chain_field: Field) -> None:
    long = "x" * 70_000
    asked = pb.GenerateRequest(text=long), pb.CountTokensRequest(text=long)
    with status(INVALID, "the prompt has more than 64 tokens") as _:
        send(chain_field.bus.address, asked[0].SerializeToString())
    with grpc.insecure_channel(chain_field.bus.address) as channel, status(INVALID, "more than 64 tokens"):
        call: Any = channel.unary_unary(COUNT_TOKENS)
        call(asked[1].SerializeToString(), timeout=30)


class FailsLater(FakeExecutor):
    """Its fourth step with a decode in it fails, counted from when `decodes` is set to 0."""

    decodes = -(10**9)

    def step(self, plan: StepPlan) -> StepResult:
        result = super().step(plan)
        self.decodes += bool(plan.scheduled)
        return StepResult(plan.step, (), error="Fault") if self.decodes == 4 and plan.scheduled else result


def test_F42_fault_after_the_first_token_is_an_error_and_no_finish(tmp_path: Path) -> None:
    model = write_chain(tmp_path / "chain", {})
    asked = pb.GenerateRequest(
        tokens=pb.TokenPrompt(ids=[1, 2, 3]), stopping=pb.StopParams(max_tokens=50, ignore_eos=True)
    )
    executor = FailsLater(INFO)
    with (
        Served(executor) as served,
        scheduler_field(model, tmp_path / "bus", InProcess(served.target), "--window", 1) as field,
        grpc.insecure_channel(field.bus.address) as channel,
    ):
        executor.decodes = 0
        call: Any = channel.unary_stream(GENERATE, response_deserializer=pb.GenerateResponse.FromString)
        responses: list[pb.GenerateResponse] = []
        with status(grpc.StatusCode.INTERNAL, "Fault"):
            for response in call(asked.SerializeToString(), timeout=30):
                responses.append(response)
        assert sum(len(response.token_ids) for response in responses) == 4, "one of the prefill, three of decodes"
        assert not any(response.HasField("finish") for response in responses)
        wait_until(lambda: is_serving(field.bus.address), "the executor has a new session", 30)
        field.check()
