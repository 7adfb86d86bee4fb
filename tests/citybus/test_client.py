"""The synchronous client against a real server."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

import grpc
import pytest

import citybus
from citybus import (
    Cancelled,
    Client,
    Delta,
    Disconnected,
    FinishReason,
    InvalidRequest,
    Keepalive,
    Model,
    NotFound,
    Unavailable,
    Unreachable,
)
from citybus.forms import FORMS
from citybus.messages import Finish, Prompt, Timings, TokenLogprobs, Usage, completion_of, delta_of
from citybus.requests import RequestOptions, to_generate_request
from citybus.v1 import generation_pb2 as pb
from tests.citybus.conftest import Served
from tests.citybus.scripted_server import ANSWER, FRANCE, REFUSED, ScriptedServer, serving


def test_stream_gives_every_delta_then_the_finish(served: Served) -> None:
    with Client(served.address) as client, client.generate(FRANCE, request_id="mine") as stream:
        assert list(stream) == [Delta(2 * i, (2 * i, 2 * i + 1), text) for i, text in enumerate(ANSWER)]
        assert stream.request_id() == "mine"
        assert stream.finish.reason is FinishReason.STOP
        assert (stream.finish.stop_token_id, stream.finish.stop_text) == (2, None)
        assert stream.finish.usage == Usage(prompt_tokens=7, completion_tokens=6, cached_tokens=4)
        assert stream.finish.timings == Timings(queued_ms=1.5, first_token_ms=2.5, total_ms=9.0)


def test_complete_joins_the_deltas(served: Served) -> None:
    with Client(served.address) as client:
        answer = client.complete(FRANCE)
    assert answer.text == "The capital of France is Paris."
    assert answer.token_ids == (0, 1, 2, 3, 4, 5)
    assert answer.request_id == served.server.requests[0].request_id
    assert answer.finish.usage.completion_tokens == 6


def test_who_does_not_reconnect_leaves_the_id_to_the_server(served: Served) -> None:
    with Client(served.address, reconnect=None) as client:
        assert client.complete(FRANCE).request_id == "made-1"
    assert not served.server.requests[0].HasField("reconnect_grace_ms")


def test_finish_is_not_there_before_the_end(served: Served) -> None:
    with Client(served.address) as client, client.generate("forever") as stream:
        next(stream)
        with pytest.raises(RuntimeError, match="read it to its end"):
            _ = stream.finish


def test_leaving_the_stream_cancels_it_on_the_server(served: Served) -> None:
    with Client(served.address) as client:
        with client.generate("forever") as stream:
            assert next(stream).text == ANSWER[0]
        assert served.server.cancelled.acquire(timeout=30)


def test_dropping_the_stream_cancels_it_on_the_server(served: Served) -> None:
    with Client(served.address) as client:
        next(client.generate("forever"))
        assert served.server.cancelled.acquire(timeout=30)


def test_cancel_from_another_thread_ends_the_reader(served: Served) -> None:
    with Client(served.address) as client, client.generate("forever") as stream:
        received = [next(stream) for _ in ANSWER]
        threading.Timer(0.1, stream.cancel).start()
        with pytest.raises(Cancelled):
            next(stream)
    assert len(received) == len(ANSWER)


def test_closing_the_client_ends_its_streams(served: Served) -> None:
    client = Client(served.address)
    stream = client.generate("forever")
    next(stream)
    client.close()
    with pytest.raises(Cancelled):
        list(stream)


def test_refusal_is_typed_and_keeps_the_servers_message(served: Served) -> None:
    with Client(served.address) as client, pytest.raises(InvalidRequest) as refused:
        client.complete("refuse")
    assert str(refused.value) == REFUSED
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.request_id is None


def test_refusal_says_when_to_try_again(served: Served) -> None:
    with Client(served.address) as client, pytest.raises(Unavailable) as refused:
        client.complete("drain")
    assert refused.value.retry_after_s == 1.5


def test_what_a_server_that_ends_cancels_can_be_sent_again(served: Served) -> None:
    with Client(served.address) as client, pytest.raises(Unavailable, match="the server cancelled the call") as broken:
        client.complete("gone")
    assert broken.value.request_id is None


def test_no_server_is_named_in_the_error() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(Unreachable, match=r"no server answers at 127\.0\.0\.1:1"):
        client.models()


def test_models_and_count_tokens(served: Served) -> None:
    with Client(served.address) as client:
        assert client.models() == [Model("tiny", 512, 272, has_chat_template=True)]
        assert client.count_tokens("one two three") == 3
        assert client.count_tokens(messages=[{"role": "user", "content": "one two"}]) == 2
        with pytest.raises(NotFound, match="this server has 'tiny'"):
            client.count_tokens("one", model="absent")


def test_wait_ready_waits_for_the_server_to_turn_healthy() -> None:
    with serving(ScriptedServer(), healthy_after_s=0.8) as address, Client(address) as client:
        with pytest.raises(Unavailable, match=r"was ready at .* within 0\.4 s: one answers that it is not serving"):
            client.wait_ready(timeout=0.4)
        client.wait_ready(timeout=60)
        assert client.models()


OPTIONS: RequestOptions = {
    "request_id": "r1",
    "model": "tiny",
    "temperature": 0.0,
    "top_p": 0.5,
    "top_k": 0,
    "min_p": 0.25,
    "seed": 0,
    "max_tokens": 3,
    "stop": ["\n", "END"],
    "stop_token_ids": [5, 6],
    "ignore_eos": True,
    "repetition_penalty": 1.5,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.25,
    "logit_bias": {7: -100, 8: 0.5},
    "allowed_token_ids": [1, 7],
    "banned_token_ids": [2],
    "bad_words": ["no", "never"],
    "min_tokens": 2,
    "include_stop": True,
    "logprobs": 0,
    "prompt_logprobs": 3,
    "echo": True,
    "priority": -7,
    "tenant": "a",
    "time_limit_ms": 900,
    "cache_salt": "",
    "skip_special_tokens": False,
    "n": 3,
    "best_of": 5,
    "beam_width": 4,
    "length_penalty": 0.5,
    "early_stopping": "never",
}


def test_every_option_reaches_the_request() -> None:
    assert to_generate_request("hello", OPTIONS) == pb.GenerateRequest(
        request_id="r1",
        model="tiny",
        text="hello",
        sampling=pb.SamplingParams(
            temperature=0.0,
            top_p=0.5,
            top_k=0,
            min_p=0.25,
            seed=0,
            repetition_penalty=1.5,
            presence_penalty=-0.5,
            frequency_penalty=0.25,
            logit_bias={7: -100, 8: 0.5},
            allowed_token_ids=[1, 7],
            banned_token_ids=[2],
            bad_words=["no", "never"],
        ),
        stopping=pb.StopParams(
            max_tokens=3,
            stop=["\n", "END"],
            stop_token_ids=[5, 6],
            ignore_eos=True,
            min_tokens=2,
            include_stop=True,
        ),
        output=pb.OutputParams(logprobs=0, prompt_logprobs=3, echo=True),
        priority=-7,
        tenant="a",
        time_limit_ms=900,
        cache_salt="",
        skip_special_tokens=False,
        samples=pb.SampleParams(n=3, best_of=5),
        beam_search=pb.BeamSearchParams(width=4, length_penalty=0.5, early_stopping=pb.EARLY_STOPPING_NEVER),
    )
    prompts = {"messages", "token_ids"}
    assert set(RequestOptions.__annotations__) == set(OPTIONS) | prompts | set(FORMS)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"json_schema": {"enum": [1, "é"]}}, pb.StructuredOutput(json_schema='{"enum": [1, "\\u00e9"]}')),
        ({"json_schema": "not even JSON"}, pb.StructuredOutput(json_schema="not even JSON")),
        ({"json_object": True}, pb.StructuredOutput(json_object=True)),
        ({"regex": "a+"}, pb.StructuredOutput(regex="a+")),
        ({"choice": ["a", "b"]}, pb.StructuredOutput(choice=pb.Choice(texts=["a", "b"]))),
        ({"grammar": "start: /a/"}, pb.StructuredOutput(grammar="start: /a/")),
    ],
)
def test_the_form_of_an_answer_reaches_the_request(options: RequestOptions, expected: pb.StructuredOutput) -> None:
    assert to_generate_request("hello", options) == pb.GenerateRequest(text="hello", structured_output=expected)


def test_an_answer_has_one_form() -> None:
    with pytest.raises(ValueError, match="choice: an answer has one form: give one of json_schema, json_object"):
        to_generate_request("hello", {"regex": "a", "choice": ["a"]})
    with pytest.raises(TypeError, match="choice: expected a list of texts, got a text"):
        to_generate_request("hello", {"choice": "ab"})
    with pytest.raises(TypeError, match="regex"):
        to_generate_request("hello", {"regex": 5})  # type: ignore[typeddict-item]


def test_what_is_left_out_stays_absent() -> None:
    assert to_generate_request(None, {"token_ids": [3, 1]}) == pb.GenerateRequest(tokens=pb.TokenPrompt(ids=[3, 1]))
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")])
    turns: RequestOptions = {"messages": [{"role": "user", "content": "hi"}]}
    assert to_generate_request(None, turns) == pb.GenerateRequest(chat=chat)


@pytest.mark.parametrize(
    ("prompt", "options", "error", "message"),
    [
        (None, {}, ValueError, "exactly one prompt"),
        ("a", {"token_ids": [1]}, ValueError, "exactly one prompt"),
        ("a", {"max_tokens": -1}, ValueError, "max_tokens: "),
        ("a", {"temperature": "hot"}, TypeError, "temperature: "),
        ("a", {"stop": "END"}, TypeError, "stop: expected a list"),
        ("a", {"bad_words": "no"}, TypeError, "bad_words: expected a list"),
        ("a", {"logit_bias": {-1: 2.0}}, ValueError, "logit_bias: "),
        ("a", {"logit_bias": {"no": 2.0}}, TypeError, "logit_bias: "),
        ("a", {"allowed_token_ids": [1.5]}, TypeError, "allowed_token_ids: "),
        ("a", {"text": "b"}, TypeError, "text: no such option"),
        ("a", {"n": -1}, ValueError, "n: "),
        ("a", {"early_stopping": "soon"}, ValueError, "early_stopping: expected False, True"),
        ("a", {"count": 2}, TypeError, "count: no such option"),
        (None, {"messages": [{"role": "user", "name": "x"}]}, ValueError, "messages: "),
    ],
)
def test_what_no_request_can_hold_is_refused_here(
    prompt: str | None, options: Any, error: type[Exception], message: str
) -> None:
    with Client() as client, pytest.raises(error, match=message):
        client.generate(prompt, **options)


def test_log_probabilities_and_the_prompt_come_with_their_parts() -> None:
    known = pb.TokenLogprobs(logprob=-0.5, rank=2, top_ids=[9, 4], top_logprobs=[-0.25, -0.5])
    prompt = pb.Prompt(token_ids=[1, 2], text="ab", logprobs=[pb.TokenLogprobs(), known])
    first = delta_of(pb.GenerateResponse(token_ids=[4], text="x", logprobs=[known], prompt=prompt))
    second = delta_of(pb.GenerateResponse(first_index=1, token_ids=[5], logprobs=[pb.TokenLogprobs()]))
    assert first is not None and second is not None
    score, unknown = TokenLogprobs(-0.5, 2, (9, 4), (-0.25, -0.5)), TokenLogprobs(None, 0, (), ())
    assert first == Delta(0, (4,), "x", (score,), Prompt((1, 2), "ab", (unknown, score)))
    end = Finish(FinishReason.LENGTH, Usage(2, 2, 0), Timings(0.0, 0.0, 0.0))
    whole = completion_of([first, second], end, "r")
    assert (whole.logprobs, whole.prompt) == ((score, unknown), first.prompt)
    nothing_drawn = delta_of(pb.GenerateResponse(prompt=prompt, finish=pb.Finish(reason=pb.FINISH_REASON_DEADLINE)))
    assert nothing_drawn is not None and nothing_drawn.prompt == first.prompt


def test_keepalive_faster_than_the_server_allows_is_refused() -> None:
    with pytest.raises(ValueError, match="interval_s must be at least 5"):
        Keepalive(interval_s=2.5)


SERVER = """
from tests.citybus.scripted_server import ScriptedServer, serving
with serving(ScriptedServer()) as address:
    print(address, flush=True)
    input()
"""


def test_server_that_stands_still_is_noticed_by_keepalive() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", SERVER], cwd=root, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        address, keepalive = process.stdout.readline().strip(), Keepalive(5.0, 0.5)
        with Client(address, keepalive=keepalive, reconnect=None) as client:
            stream = client.generate("forever")
            received = [next(stream) for _ in ANSWER]
            process.send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            with pytest.raises(Disconnected, match=rf"^the connection to the server at {address} broke \("):
                next(stream)
            assert time.monotonic() - stopped < 30, "gRPC itself would take a minute"
            process.send_signal(signal.SIGCONT)
            next(stream := client.generate("forever"))
            process.kill()
            with pytest.raises(Disconnected, match=r"broke \(.*\): send the request again$") as broken:
                list(stream)
            assert broken.value.code is grpc.StatusCode.UNAVAILABLE
    assert len(received) == len(ANSWER)


def test_every_public_name_is_there() -> None:
    assert {name: getattr(citybus, name).__name__ for name in citybus.__all__} == {n: n for n in citybus.__all__}
    with pytest.raises(AttributeError, match="no attribute 'Bus'"):
        _ = citybus.Bus
