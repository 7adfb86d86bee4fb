"""The generation service over a real gRPC server, with a scripted loop behind it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from common.errors import CitybusError, InvalidRequest, Unavailable
from common.grpc_server import ErrorInterceptor
from common.metrics import SchedulerMetrics
from scheduler_svc.acceptance import Acceptance
from scheduler_svc.chat_template import ChatTemplate
from scheduler_svc.core.request import FinishReason
from scheduler_svc.form_check import FormCheck
from scheduler_svc.frontend import GenerationServicer
from scheduler_svc.journal import NoJournal
from scheduler_svc.model_files import read_model_files
from scheduler_svc.prompts import PromptEncoder
from scheduler_svc.tokenizer import Tokenizer
from tests.scheduler.scripted_loop import ScriptedLoop
from tests.scheduler.text_folders import BOS, CHATML, EOS, IM_END, IM_START, byte_level, write_folder

EMOJI = "😀".encode()
INVALID, UNAVAILABLE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE


class Bus:
    """The service, a client of it, and what is behind."""

    def __init__(
        self, loop: ScriptedLoop, stub: Any, registry: CollectorRegistry, address: str, encoder: PromptEncoder
    ) -> None:
        self.loop = loop
        self.stub = stub
        self.address = address
        self.encoder = encoder
        self._registry = registry

    def metric(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"citybus:{name}", labels)

    async def generate(self, **fields: Any) -> tuple[str, list[pb.GenerateResponse]]:
        """The text, and all messages."""
        if not fields.keys() & {"text", "chat", "tokens"}:
            fields["text"] = "hi"
        responses = [response async for response in self.stub.Generate(pb.GenerateRequest(**fields))]
        indices = [response.first_index for response in responses]
        counts = [len(response.token_ids) for response in responses]
        assert indices == [sum(counts[:place]) for place in range(len(counts))]
        assert [response.HasField("finish") for response in responses] == [False] * (len(responses) - 1) + [True]
        return "".join(response.text for response in responses), responses

    async def refused(self, **fields: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.generate(**fields)
        assert self.metric("request_failures_total", code=caught.value.code().name) == 1
        return caught.value.code(), str(caught.value.details())


Start = Callable[..., contextlib.AbstractAsyncContextManager[Bus]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    @contextlib.asynccontextmanager
    async def start_bus(
        script: Sequence[int] = b"hello",
        ending: FinishReason | CitybusError | None = FinishReason.LENGTH,
        *,
        bos: bool = True,
        eos_special: bool = True,
        chat_template: str | None = CHATML,
        **options: Any,
    ) -> AsyncIterator[Bus]:
        backend = byte_level(bos=bos, eos_special=eos_special)
        files = read_model_files(write_folder(tmp_path, backend, chat_template=chat_template))
        template = ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template else None
        encoder, registry = PromptEncoder(Tokenizer(files), template), CollectorRegistry()
        loop = ScriptedLoop(script, ending)
        metrics, clock = SchedulerMetrics(registry), options.get("clock", time.monotonic)
        acceptance = Acceptance(encoder, files.eos_token_ids, metrics, options.pop("max_time_s", None), clock)
        journal, doorkeepers = options.pop("journal", NoJournal()), options.pop("interceptors", ())
        servicer = GenerationServicer(loop, encoder, FormCheck(tmp_path), acceptance, journal, metrics, **options)
        server = grpc.aio.server(interceptors=[ErrorInterceptor(), *doorkeepers])
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            yield Bus(loop, generation_pb2_grpc.GenerationServiceStub(channel), registry, address, encoder)
        await server.stop(None)
        encoder.close()

    return start_bus


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_answer_with_its_usage_and_timings(start: Start) -> None:
    async with start(b"hello") as bus:
        text, responses = await bus.generate(text="hi", stopping=pb.StopParams(max_tokens=5))
    assert text == "hello"
    assert [token for response in responses for token in response.token_ids] == list(b"hello")
    assert responses[-1].finish == pb.Finish(
        reason=pb.FINISH_REASON_LENGTH,
        usage=pb.Usage(prompt_tokens=3, completion_tokens=5, cached_tokens=2),
        timings=pb.Timings(queued_ms=250, first_token_ms=500, total_ms=1500),
    )


async def test_request_that_the_loop_gets(start: Start) -> None:
    async with start(clock=lambda: 100.0, max_time_s=60.0) as bus:
        await bus.generate(
            text="hi",
            sampling=pb.SamplingParams(temperature=0, seed=9),
            stopping=pb.StopParams(max_tokens=4, stop_token_ids=[7]),
            priority=5,
            tenant="a",
            time_limit_ms=2500,
            cache_salt="s",
        )
        await bus.generate(tokens=pb.TokenPrompt(ids=[1, 2]), stopping=pb.StopParams(ignore_eos=True))
    first, second = bus.loop.requests
    assert (first.sequence_id, first.prompt, first.arrival, first.deadline) == (1, (BOS, 104, 105), 100.0, 102.5)
    assert (first.sampling.temperature, first.sampling.seed) == (0.0, 9)
    assert first.stop_token_ids == {EOS, 7}
    assert (first.max_tokens, first.priority) == (4, 5)
    assert (first.tenant, first.cache_salt) == ("a", "s")
    assert (second.sequence_id, second.prompt, second.deadline, second.max_tokens) == (2, (1, 2), 160.0, None)
    assert second.stop_token_ids == frozenset()


async def test_time_limit_of_the_server_bounds_that_of_a_request(start: Start) -> None:
    async with start(clock=lambda: 100.0, max_time_s=2.0) as bus:
        await bus.generate(time_limit_ms=5000)
    async with start(clock=lambda: 100.0) as unbounded:
        await unbounded.generate()
    assert bus.loop.requests[0].deadline == 102.0
    assert unbounded.loop.requests[0].deadline is None


async def test_id_of_the_request_comes_back_as_soon_as_it_is_accepted(start: Start) -> None:
    async with start(b"", None) as bus:
        named = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="mine"))
        unnamed = bus.stub.Generate(pb.GenerateRequest(text="hi"))
        ids = [dict(await call.initial_metadata())["citybus-request-id"] for call in (named, unnamed)]
        for call in (named, unnamed):
            call.cancel()
    assert ids[0] == "mine"
    assert len(ids[1]) == 32


async def test_chat_is_rendered_and_its_answer_is_a_text_of_its_own(start: Start) -> None:
    async with start([*b"ok", EOS]) as bus:
        chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="<|im_end|>")])
        text, responses = await bus.generate(chat=chat)
    prompt = (IM_START, *b"user\n<|im_end|>", IM_END, *b"\n", IM_START, *b"assistant\n")
    assert bus.loop.requests[0].prompt == prompt
    assert text == "ok"
    assert responses[-1].finish.stop_token_id == EOS


async def test_F01_prompt_that_ends_inside_a_character(start: Start) -> None:
    for cut in (1, 2, 3):
        async with start([*EMOJI[cut:], *b"ok"]) as bus:
            text, _ = await bus.generate(tokens=pb.TokenPrompt(ids=[*b"Hello world ", *EMOJI[:cut]]))
        assert text == "😀ok"


@pytest.mark.parametrize(
    ("stops", "max_tokens", "text", "stop_text", "count"),
    [
        (["DEFG"], None, "ABC", "DEFG", 7),
        (["DEFX"], 7, "ABCDEFG", "", 7),
        (["DEFG"], 6, "ABCDEF", "", 6),
        (["FG", "DEFG"], None, "ABC", "DEFG", 7),
    ],
)
async def test_F03_stop_text_over_several_tokens(
    start: Start, stops: list[str], max_tokens: int | None, text: str, stop_text: str, count: int
) -> None:
    async with start(b"ABCDEFGHI") as bus:
        got, responses = await bus.generate(stopping=pb.StopParams(stop=stops, max_tokens=max_tokens))
    finish = responses[-1].finish
    assert (got, finish.stop_text, finish.usage.completion_tokens) == (text, stop_text, count)
    assert finish.reason == (pb.FINISH_REASON_STOP if stop_text else pb.FINISH_REASON_LENGTH)
    assert sum(len(response.token_ids) for response in responses) == count


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("eos_special", [True, False])
async def test_F04_end_token_is_never_shown(start: Start, skip: bool, eos_special: bool) -> None:
    async with start([*b"h", IM_END, *b"i", EOS], eos_special=eos_special) as bus:
        text, responses = await bus.generate(skip_special_tokens=skip)
        ignored, _ = await bus.generate(skip_special_tokens=skip, stopping=pb.StopParams(ignore_eos=True))
    assert text == ("hi" if skip else "h<|im_end|>i")
    assert ignored == ("hi" if skip else "h<|im_end|>i<|eos|>")
    assert responses[-1].finish.reason == pb.FINISH_REASON_STOP
    assert responses[-1].finish.stop_token_id == EOS
    assert responses[-1].finish.usage.completion_tokens == 4


async def test_F05_empty_stop_text(start: Start) -> None:
    async with start() as bus:
        code, details = await bus.refused(stopping=pb.StopParams(stop=["", "x"]))
    assert (code, "stopping.stop" in details) == (INVALID, True)
    assert bus.loop.requests == []


async def test_F09_token_ids_outside_the_vocabulary(start: Start) -> None:
    async with start() as bus:
        code, details = await bus.refused(tokens=pb.TokenPrompt(ids=[1, 266]))
        assert (code, details) == (INVALID, "tokens: token id 266 is over 265, the model's largest")
        await bus.generate(tokens=pb.TokenPrompt(ids=[265]))
    assert [request.prompt for request in bus.loop.requests] == [(265,)]


async def test_F13_empty_prompt(start: Start) -> None:
    nothing: list[dict[str, Any]] = [{"text": ""}, {"chat": pb.ChatPrompt()}, {"tokens": pb.TokenPrompt()}]
    for prompt in nothing:
        async with start(bos=False) as bus:
            code, details = await bus.refused(**prompt)
            assert code == INVALID
            assert "empty" in details or "there must be 1 to 4096" in details
            assert (await bus.generate())[0] == "hello"
    async with start() as bus:
        assert (await bus.generate(text=""))[0] == "hello"
    assert bus.loop.requests[0].prompt == (BOS,)


@pytest.mark.parametrize("length", [63, 64, 65, 640])
async def test_F15_prompt_at_the_limit(start: Start, length: int) -> None:
    prompt = pb.TokenPrompt(ids=[1] * length)
    async with start() as bus:
        if length == 63:
            await bus.generate(tokens=prompt)
            assert len(bus.loop.requests[0].prompt) == 63
        else:
            code, details = await bus.refused(tokens=prompt, stopping=pb.StopParams(max_tokens=1))
            assert code == INVALID
            assert details.startswith(f"the prompt has {length} tokens and the model's context is 64")


async def test_F48_template_that_refuses_is_the_callers_fault(start: Start) -> None:
    async with start(chat_template="{{ raise_exception('Conversation roles must alternate') }}") as bus:
        chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="x")] * 2)
        code, details = await bus.refused(chat=chat)
    assert code == INVALID
    assert details == "chat: the model's template refuses this conversation: Conversation roles must alternate"


async def test_F48_missing_template(start: Start) -> None:
    async with start(chat_template=None) as bus:
        chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="x")])
        assert (await bus.refused(chat=chat))[0] == INVALID
        assert (await bus.generate(text="x"))[0] == "hello"
        assert not (await bus.stub.ListModels(pb.ListModelsRequest())).models[0].has_chat_template


async def test_F60_unknown_model(start: Start) -> None:
    async with start() as bus:
        code, _ = await bus.refused(model="../../etc/passwd")
        assert code == grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bus.stub.CountTokens(pb.CountTokensRequest(model="x", text="hi"))
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("script", [b"", b"hello"])
async def test_F32_call_that_is_cancelled_ends_the_sequence(start: Start, script: bytes) -> None:
    async with start(script, None) as bus:
        call = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="again"))
        await call.initial_metadata()
        if script:
            assert (await call.read()).first_index == 0
        call.cancel()
        await until(lambda: bus.loop.cancelled == [1])
        assert bus.metric("request_success_total", finished_reason="cancelled") == 1
        again = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="again"))
        await again.initial_metadata()
        again.cancel()
        await until(lambda: bus.loop.cancelled == [1, 2])


async def test_F32_client_that_vanishes_ends_the_sequence(start: Start) -> None:
    async with start(b"hello", None) as bus:
        async with grpc.aio.insecure_channel(bus.address) as channel:
            stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
            await stub.Generate(pb.GenerateRequest(text="hi")).read()
        await until(lambda: bus.loop.cancelled == [1])


async def test_answer_that_has_ended_is_not_cancelled(start: Start) -> None:
    async with start() as bus:
        await bus.generate()
    assert bus.loop.cancelled == []


async def test_slow_reader_gets_fewer_messages_and_the_whole_answer(start: Start) -> None:
    small_window = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    async with (
        start(b"ab" * 50_000) as bus,
        grpc.aio.insecure_channel(bus.address, options=small_window) as channel,
    ):
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate(pb.GenerateRequest(text="hi"))
        await call.initial_metadata()
        await until(lambda: not bus.loop.sinks)
        responses = [response async for response in call]
    assert "".join(response.text for response in responses) == "ab" * 50_000
    assert sum(len(response.token_ids) for response in responses) == 100_000
    assert len(responses) < 1_000
    assert max(len(response.token_ids) for response in responses) > 50_000


async def test_F38_second_live_request_of_an_id(start: Start) -> None:
    async with start(b"h", None) as bus:
        first = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="same"))
        await first.read()
        code, _ = await bus.refused(request_id="same")
        assert code == grpc.StatusCode.ALREADY_EXISTS
        other = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="same", tenant="other"))
        assert (await other.read()).text == "h"
        other.cancel()
        await until(lambda: bus.loop.cancelled == [2])
        assert not first.done()
        first.cancel()


async def test_F38_id_may_be_used_again_after_the_end(start: Start) -> None:
    async with start() as bus:
        assert [(await bus.generate(request_id="same"))[0] for _ in range(3)] == ["hello"] * 3


async def test_more_requests_than_the_server_takes(start: Start) -> None:
    async with start(b"h", None, max_live_requests=2) as bus:
        calls = []
        for _ in range(2):
            calls.append(bus.stub.Generate(pb.GenerateRequest(text="hi")))
            await calls[-1].read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bus.generate()
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == (
            "the server has 2 of at most 2 requests, and this one counts as 1; try again later"
        )
        assert caught.value.trailing_metadata()["grpc-retry-pushback-ms"] == "1000"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bus.stub.CountTokens(pb.CountTokensRequest(text="hi"))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        calls[0].cancel()
        await until(lambda: bus.loop.cancelled == [1])
        third = bus.stub.Generate(pb.GenerateRequest(text="hi"))
        assert (await third.read()).text == "h"


async def test_who_never_reads_does_not_keep_a_place_for_ever(start: Start) -> None:
    unread = b"x" * 400_000  # more than the connection takes in
    async with start(unread, max_live_requests=1, max_time_s=0.5, reading_grace_s=0.5) as bus:
        narrow = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(bus.address, options=narrow) as channel:
            stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
            call = stub.Generate(pb.GenerateRequest(text="hi"))
            await call.read()
            await until(lambda: bus.metric("request_failures_total", code="RESOURCE_EXHAUSTED") == 1)
            assert (await bus.generate(stopping=pb.StopParams(max_tokens=5)))[0] == "xxxxx"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while await call.read() is not grpc.aio.EOF:
                    pass
        assert caught.value.details() == "the answer was not read within its time limit"


async def test_no_executor(start: Start) -> None:
    async with start() as bus:
        bus.loop.model = None
        assert await bus.refused() == (UNAVAILABLE, "no executor is connected; try again")
        for call in (bus.stub.ListModels(pb.ListModelsRequest()), bus.stub.CountTokens(pb.CountTokensRequest())):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() == UNAVAILABLE


@pytest.mark.parametrize(
    ("refusal", "code"), [(InvalidRequest("never fits"), INVALID), (Unavailable("draining"), UNAVAILABLE)]
)
async def test_loop_that_does_not_take_the_request(start: Start, refusal: CitybusError, code: grpc.StatusCode) -> None:
    async with start() as bus:
        bus.loop.refusal = refusal
        assert await bus.refused(request_id="same") == (code, str(refusal))
        assert bus.metric("request_prompt_tokens_count") == 0
        bus.loop.refusal = None
        assert (await bus.generate(request_id="same"))[0] == "hello"


@pytest.mark.parametrize(
    ("reason", "sent"),
    [
        (FinishReason.STOP, pb.FINISH_REASON_STOP),
        (FinishReason.DEADLINE, pb.FINISH_REASON_DEADLINE),
        (FinishReason.CANCELLED, pb.FINISH_REASON_CANCELLED),
    ],
)
async def test_reason_of_the_end(start: Start, reason: FinishReason, sent: int) -> None:
    async with start(b"hello", reason) as bus:
        text, responses = await bus.generate()
    assert (text, responses[-1].finish.reason) == ("hello", sent)
    assert responses[-1].finish.WhichOneof("stopped_by") is None
    assert bus.metric("request_success_total", finished_reason=reason.value) == 1


@pytest.mark.parametrize(
    ("ending", "code"),
    [(Unavailable("the executor is gone"), UNAVAILABLE), (FinishReason.ERROR, grpc.StatusCode.INTERNAL)],
)
async def test_failure_after_the_first_token(
    start: Start, ending: CitybusError | FinishReason, code: grpc.StatusCode
) -> None:
    async with start(b"he", ending) as bus:
        text = ""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for response in bus.stub.Generate(pb.GenerateRequest(text="hi")):
                assert not response.HasField("finish")
                text += response.text
    assert (text, caught.value.code()) == ("he", code)


async def test_metrics_of_a_request(start: Start) -> None:
    async with start(b"hello") as bus:
        await bus.generate(text="hi", stopping=pb.StopParams(max_tokens=5))
    assert bus.metric("request_prompt_tokens_sum") == 3
    assert bus.metric("generation_tokens_total") == 5
    assert bus.metric("request_generation_tokens_sum") == 5
    assert bus.metric("time_to_first_token_seconds_count") == 1
    assert bus.metric("inter_token_latency_seconds_count") == 4
    assert bus.metric("e2e_request_latency_seconds_sum") == 1.5
    assert bus.metric("request_queue_time_seconds_sum") == 0.25
    assert bus.metric("request_success_total", finished_reason="length") == 1


async def test_models_and_token_counts(start: Start) -> None:
    async with start() as bus:
        models = (await bus.stub.ListModels(pb.ListModelsRequest())).models
        text = await bus.stub.CountTokens(pb.CountTokensRequest(model="tiny", text="x" * 100))
        messages = [pb.ChatMessage(role="user", content="hi")]
        chat = await bus.stub.CountTokens(pb.CountTokensRequest(chat=pb.ChatPrompt(messages=messages)))
    assert list(models) == [pb.Model(name="tiny", max_model_len=64, vocab_size=266, has_chat_template=True)]
    assert (text.num_tokens, chat.num_tokens) == (101, 21)


async def test_same_request_again_after_it_has_failed_is_computed_anew(start: Start) -> None:
    async with start(b"he", Unavailable("the executor is away: try again later")) as bus:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError, match="the executor is away"):
                await bus.generate(request_id="same", reconnect_grace_ms=60_000)
    assert [request.sequence_id for request in bus.loop.requests] == [1, 2]


async def test_same_request_again_after_it_was_cancelled_is_computed_anew(start: Start) -> None:
    async with start(b"h", None) as bus:
        request = pb.GenerateRequest(text="hi", request_id="same", reconnect_grace_ms=60_000)
        first = bus.stub.Generate(request)
        await first.read()
        first.cancel()
        await bus.stub.Cancel(pb.CancelRequest(request_id="same"))
        await until(lambda: bus.loop.cancelled == [1])
        await asyncio.sleep(0.05)
        again = bus.stub.Generate(request)
        assert (await again.read()).text == "h"
        assert [request.sequence_id for request in bus.loop.requests] == [1, 2]
        again.cancel()


async def test_ended_answer_can_be_read_after_its_time_limit(start: Start) -> None:
    now = 100.0
    async with start(clock=lambda: now) as bus:
        await bus.generate(request_id="late", reconnect_grace_ms=1000, time_limit_ms=500)
        now += 200.0
        responses = [each async for each in bus.stub.Attach(pb.AttachRequest(request_id="late"))]
    assert "".join(each.text for each in responses) == "hello"


async def test_who_attaches_to_a_scheduler_that_has_let_go_is_told_to_try_again(start: Start) -> None:
    async with start(b"h", None) as bus:
        call = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="a"))
        await call.read()
        attach = pb.AttachRequest(request_id="b")
        assert await code_of(bus.stub.Attach(attach)) == grpc.StatusCode.NOT_FOUND
        bus.loop.model = None
        bus.loop.sinks.pop(1).fail(Unavailable("the scheduler is being replaced: attach again"))
        assert await code_of(call) == UNAVAILABLE
        assert await code_of(bus.stub.Attach(pb.AttachRequest(request_id="a", next_index=1))) == UNAVAILABLE


async def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await call.read() is not grpc.aio.EOF:
            pass
    return caught.value.code()


class SlowJournal(NoJournal):
    """Has a request written down when told so."""

    def __init__(self) -> None:
        self.writes = asyncio.Event()

    async def accept(self, sequence_ids: Sequence[int], request: bytes) -> None:
        await self.writes.wait()


@pytest.mark.parametrize("leaves", [False, True])
async def test_who_attaches_while_the_request_is_written_down_gets_the_whole_answer(start: Start, leaves: bool) -> None:
    journal = SlowJournal()
    async with start(b"h", None, journal=journal) as bus:
        first = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="a", reconnect_grace_ms=300))
        await until(lambda: 1 in bus.loop.sinks)
        second = bus.stub.Attach(pb.AttachRequest(request_id="a"))
        assert (await second.read()).text == "h"
        if leaves:
            second.cancel()
            await asyncio.sleep(0.05)
        journal.writes.set()
        assert await code_of(first) == grpc.StatusCode.ABORTED
        second.cancel()
        await until(lambda: bus.loop.cancelled == [1])
