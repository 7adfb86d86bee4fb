"""Every field of a request: its default, its limits, and the name in the refusal."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from citybus.v1 import generation_pb2 as pb
from common.errors import InvalidRequest, NotFound
from common.grammar import Grammar, GrammarKind
from common.step import ExecutorInfo, Sampling
from scheduler_svc.answer_params import AnswerParams
from scheduler_svc.forms import Form
from scheduler_svc.prompts import ChatPrompt, Message, TextPrompt, TokenPrompt
from scheduler_svc.validation import GenerateCall, validate_generate, validate_prompt

VOCAB = 1000
MODEL = ExecutorInfo(
    epoch=b"\0" * 16,
    model="tiny",
    vocab_size=VOCAB,
    max_model_len=64,
    block_size=16,
    num_blocks=8,
    max_sequences=4,
    max_step_tokens=64,
)


def validate(**fields: Any) -> GenerateCall:
    if not fields.keys() & {"text", "chat", "tokens"}:
        fields["text"] = "hi"
    return validate_generate(pb.GenerateRequest(**fields), MODEL)


def sampling(**params: Any) -> Sampling:
    return validate(sampling=pb.SamplingParams(seed=7, **params)).sampling


def refusal(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        validate(**fields)
    return str(caught.value)


def test_defaults() -> None:
    call = validate(text="hi")
    assert dataclasses.replace(
        call, request_id="", sampling=dataclasses.replace(call.sampling, seed=0)
    ) == GenerateCall(
        request_id="",
        prompt=TextPrompt("hi"),
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=0),
        form=None,
        bad_words=(),
        stop_texts=(),
        stop_token_ids=frozenset(),
        ignore_eos=False,
        include_stop=False,
        echo=False,
        max_tokens=None,
        priority=0,
        tenant="",
        time_limit_s=None,
        cache_salt=None,
        skip_special_tokens=True,
        grace_s=0.0,
        answers=AnswerParams(),
    )


def test_every_field_arrives() -> None:
    call = validate(
        request_id="a!~" * 42,
        model="tiny",
        tokens=pb.TokenPrompt(ids=[1, 2]),
        sampling=pb.SamplingParams(
            temperature=0.5,
            top_p=0.25,
            top_k=3,
            min_p=0.125,
            seed=2**64 - 1,
            repetition_penalty=1.5,
            presence_penalty=-2.0,
            frequency_penalty=0.25,
            logit_bias={9: -100.0, 0: 0.5},
            allowed_token_ids=[9, 0, 9],
            banned_token_ids=[5, 4],
            bad_words=["no", "é" * 128],
        ),
        stopping=pb.StopParams(
            max_tokens=5,
            stop=["x", "yé"],
            stop_token_ids=[3, 999, 3],
            ignore_eos=True,
            min_tokens=5,
            include_stop=True,
        ),
        output=pb.OutputParams(logprobs=0, prompt_logprobs=20, echo=True),
        priority=-1000,
        tenant="team a",
        time_limit_ms=1500,
        cache_salt="",
        reconnect_grace_ms=2500,
        skip_special_tokens=False,
        samples=pb.SampleParams(n=64),
    )
    assert call == GenerateCall(
        request_id="a!~" * 42,
        prompt=TokenPrompt((1, 2)),
        sampling=Sampling(
            *(0.5, 0.25, 3, 0.125, 2**64 - 1),
            repetition_penalty=1.5,
            presence_penalty=-2.0,
            frequency_penalty=0.25,
            logit_bias=((0, 0.5), (9, -100.0)),
            allowed_token_ids=(0, 9),
            banned_token_ids=(4, 5),
            min_tokens=5,
            num_logprobs=0,
            num_prompt_logprobs=20,
        ),
        form=None,
        bad_words=("no", "é" * 128),
        stop_texts=("x", "yé"),
        stop_token_ids=frozenset({3, 999}),
        ignore_eos=True,
        include_stop=True,
        echo=True,
        max_tokens=5,
        priority=-1000,
        tenant="team a",
        time_limit_s=1.5,
        cache_salt="",
        skip_special_tokens=False,
        grace_s=2.5,
        answers=AnswerParams(64, 64),
    )


def test_a_form_arrives() -> None:
    asked = pb.GenerateRequest(text="x", structured_output=pb.StructuredOutput(regex="a+"))
    assert validate_generate(asked, MODEL).form == Form("structured_output.regex", Grammar(GrammarKind.REGEX, "a+"))


def test_request_without_an_id_or_a_seed_gets_fresh_ones() -> None:
    calls = [validate() for _ in range(50)]
    assert len({call.request_id for call in calls}) == 50
    assert len({call.sampling.seed for call in calls}) == 50
    assert max(call.sampling.seed for call in calls) >= 2**48


@pytest.mark.parametrize("request_id", ["", " ", "a b", "a\n", "é", "x" * 129, "x" * 1_000_000, "\x7f"])
def test_F38_request_id(request_id: str) -> None:
    assert refusal(request_id=request_id) == "request_id must be 1 to 128 printable ASCII characters without spaces"


@pytest.mark.parametrize("tenant", ["a\tb", "é", "x" * 129, "a\n"])
def test_tenant(tenant: str) -> None:
    assert refusal(tenant=tenant) == "tenant must be at most 128 printable ASCII characters"


@pytest.mark.parametrize("name", ["../../etc/passwd", "Tiny", "tiny\n", "\0", "x" * 1_000_000, "%2e%2e"])
def test_F60_unknown_model_is_not_found_and_not_echoed(name: str) -> None:
    with pytest.raises(NotFound) as caught:
        validate(model=name)
    assert str(caught.value) == 'model: not served here; this server answers for "tiny"'


def test_F13_no_prompt() -> None:
    with pytest.raises(InvalidRequest, match="prompt is missing: set text, chat or tokens"):
        validate_generate(pb.GenerateRequest(), MODEL)
    with pytest.raises(InvalidRequest, match="prompt is missing"):
        validate_prompt(pb.CountTokensRequest())


def messages(*pairs: tuple[str, str]) -> pb.ChatPrompt:
    return pb.ChatPrompt(messages=[pb.ChatMessage(role=role, content=content) for role, content in pairs])


def test_F13_conversation_in_which_nothing_is_said() -> None:
    assert refusal(chat=messages()) == "chat.messages: there must be 1 to 4096, not 0"
    empty = "chat.messages: the prompt is empty; at least one message must have content"
    assert refusal(chat=messages(("user", ""))) == empty
    assert refusal(chat=messages(("system", ""), ("user", ""))) == empty
    call = validate(chat=messages(("system", ""), ("user", "hi")))
    assert call.prompt == ChatPrompt((Message("system", ""), Message("user", "hi")))


def test_number_of_messages() -> None:
    prompt = validate(chat=messages(*[("user", "x")] * 4096)).prompt
    assert isinstance(prompt, ChatPrompt) and len(prompt.messages) == 4096
    assert refusal(chat=messages(*[("user", "x")] * 4097)) == "chat.messages: there must be 1 to 4096, not 4097"


@pytest.mark.parametrize("role", ["", "user ", "<|im_end|>", "x" * 65, "é", "user\n"])
def test_role(role: str) -> None:
    expected = "chat.messages[1].role must be 1 to 64 letters, digits, _ or -"
    assert refusal(chat=messages(("user", "hi"), (role, "hi"))) == expected


@pytest.mark.parametrize("stop", [[""], ["", "x"], ["x", ""]])
def test_F05_empty_stop_text(stop: list[str]) -> None:
    assert refusal(stopping=pb.StopParams(stop=stop)) == "stopping.stop: each text must have 1 to 256 characters"


def test_F05_limits_of_the_stop_list() -> None:
    assert validate(stopping=pb.StopParams(stop=[])).stop_texts == ()
    assert len(validate(stopping=pb.StopParams(stop=["é" * 256] * 16)).stop_texts) == 16
    assert refusal(stopping=pb.StopParams(stop=["x"] * 17)) == "stopping.stop: there must be 0 to 16, not 17"
    too_long = "stopping.stop: each text must have 1 to 256 characters"
    assert refusal(stopping=pb.StopParams(stop=["x" * 257])) == too_long
    assert refusal(stopping=pb.StopParams(stop=["x" * 1_000_000])) == too_long


@pytest.mark.parametrize("outside", [VOCAB, VOCAB + 1, 2**31, 2**32 - 1])
def test_F09_stop_token_ids_outside_the_vocabulary(outside: int) -> None:
    expected = f"stopping.stop_token_ids: {outside} is over 999, the model's largest"
    assert refusal(stopping=pb.StopParams(stop_token_ids=[1, outside])) == expected


def test_F09_stop_token_ids_inside_the_vocabulary() -> None:
    assert validate(stopping=pb.StopParams(stop_token_ids=[0, VOCAB - 1])).stop_token_ids == {0, VOCAB - 1}
    assert validate(stopping=pb.StopParams(stop_token_ids=[1] * 64)).stop_token_ids == {1}
    expected = "stopping.stop_token_ids: there must be 0 to 64, not 65"
    assert refusal(stopping=pb.StopParams(stop_token_ids=[1] * 65)) == expected


@pytest.mark.parametrize(
    ("given", "resolved"), [(-1, 0), (0, 0), (1, 1), (VOCAB - 1, VOCAB - 1), (VOCAB, 0), (VOCAB + 5, 0), (2**31 - 1, 0)]
)
def test_F10_top_k(given: int, resolved: int) -> None:
    assert sampling(top_k=given) == Sampling(seed=7, top_k=resolved)


@pytest.mark.parametrize("top_k", [-2, -(2**31)])
def test_F10_negative_top_k(top_k: int) -> None:
    assert "sampling.top_k must be" in refusal(sampling=pb.SamplingParams(top_k=top_k))


@pytest.mark.parametrize("value", [0.0, -0.1, 1.01, math.nan, math.inf, -math.inf])
def test_F10_top_p_outside(value: float) -> None:
    assert refusal(sampling=pb.SamplingParams(top_p=value)) == "sampling.top_p must be over 0 and at most 1"


@pytest.mark.parametrize("value", [-0.1, 1.01, math.nan, math.inf])
def test_F10_min_p_outside(value: float) -> None:
    assert refusal(sampling=pb.SamplingParams(min_p=value)) == "sampling.min_p must be from 0 to 1"


@pytest.mark.parametrize("value", [-0.1, 100.5, math.nan, math.inf, -math.inf])
def test_F10_temperature_outside(value: float) -> None:
    assert refusal(sampling=pb.SamplingParams(temperature=value)) == "sampling.temperature must be from 0 to 100"


def test_F10_values_at_the_edges() -> None:
    assert sampling(temperature=0.0, top_p=1.0, min_p=0.0) == Sampling(temperature=0.0, seed=7)
    assert sampling(temperature=100.0, top_p=0.5, min_p=1.0) == Sampling(100.0, 0.5, 0, 1.0, 7)
    assert 0 < sampling(temperature=1e-9).temperature < 2e-9
    assert validate(sampling=pb.SamplingParams(seed=0)).sampling.seed == 0


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stopping": pb.StopParams(max_tokens=0)}, "stopping.max_tokens must be 1 or more"),
        ({"time_limit_ms": 0}, "time_limit_ms must be 1 or more"),
        ({"priority": 1001}, "priority must be from -1000 to 1000"),
        ({"priority": -1001}, "priority must be from -1000 to 1000"),
        ({"priority": -(2**31)}, "priority must be from -1000 to 1000"),
        ({"cache_salt": "é" * 65}, "cache_salt must be at most 128 bytes"),
        ({"reconnect_grace_ms": 3_600_001}, "reconnect_grace_ms must be at most 3600000"),
        ({"samples": pb.SampleParams(n=0)}, "samples.n must be from 1 to 64"),
        ({"samples": pb.SampleParams(n=65)}, "samples.n must be from 1 to 64"),
        ({"samples": pb.SampleParams(n=10**9)}, "samples.n must be from 1 to 64"),
    ],
)
def test_other_limits(fields: dict[str, Any], expected: str) -> None:
    assert refusal(**fields) == expected


def test_number_of_samples() -> None:
    asked = [None, pb.SampleParams(), pb.SampleParams(n=1), pb.SampleParams(n=64)]
    assert [validate(samples=samples).answers.num_samples for samples in asked] == [1, 1, 1, 64]


def test_salt_at_the_limit() -> None:
    assert validate(cache_salt="é" * 64).cache_salt == "é" * 64


def test_F41_more_tokens_than_fit_are_refused_before_they_are_copied() -> None:
    expected = "the prompt has 64 tokens and the model's context is 64"
    assert refusal(tokens=pb.TokenPrompt(ids=[1] * 64)).startswith(expected)
    assert validate(tokens=pb.TokenPrompt(ids=[1] * 63)).prompt == TokenPrompt((1,) * 63)


def test_F54_field_of_another_api_is_refused_by_name() -> None:
    tools = b"\xc2\x3e\x05tools"  # field 1000
    request = pb.GenerateRequest.FromString(pb.GenerateRequest(text="hi").SerializeToString() + tools)
    count = pb.CountTokensRequest.FromString(pb.CountTokensRequest(text="hi").SerializeToString() + tools)
    with pytest.raises(InvalidRequest, match=r"^citybus\.v1\.GenerateRequest has no field 1000 at this server"):
        validate_generate(request, MODEL)
    with pytest.raises(InvalidRequest, match=r"^citybus\.v1\.CountTokensRequest has no field 1000 at this server"):
        validate_prompt(count)
