"""Who is let in by the generation service, as whom, and how much he may have; and what ends before it is queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from citybus.connection import authorization
from citybus.keys import make_key
from citybus.v1 import generation_pb2 as pb
from scheduler_svc.api_keys import parse_keys
from scheduler_svc.key_interceptor import KeyInterceptor
from scheduler_svc.quotas import Limits
from tests.scheduler.test_frontend import Bus, Start, start, until

__all__ = ["start"]  # the fixture

ALICE, ALICES = make_key("alice")
BOB, BOBS = make_key("bob")
REFUSALS: list[Any] = []
CALLS: dict[str, Callable[..., Any]] = {
    "Generate": lambda bus, metadata: drain(bus.stub.Generate(pb.GenerateRequest(text="hi"), metadata=metadata)),
    "Attach": lambda bus, metadata: drain(bus.stub.Attach(pb.AttachRequest(request_id="x"), metadata=metadata)),
    "Cancel": lambda bus, metadata: bus.stub.Cancel(pb.CancelRequest(request_id="x"), metadata=metadata),
    "ListModels": lambda bus, metadata: bus.stub.ListModels(pb.ListModelsRequest(), metadata=metadata),
    "CountTokens": lambda bus, metadata: bus.stub.CountTokens(pb.CountTokensRequest(text="hi"), metadata=metadata),
}


async def drain(call: Any) -> list[pb.GenerateResponse]:
    return [response async for response in call]


def doorkeeper() -> KeyInterceptor:
    keys = parse_keys(f"{ALICES}\n{BOBS}\n")
    REFUSALS.clear()
    return KeyInterceptor(lambda: keys, REFUSALS.append)


async def status(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("method", CALLS)
async def test_every_call_needs_a_key(start: Start, method: str) -> None:
    known = authorization(ALICE)[0][1]
    wrong = [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {ALICE}",
        ALICE,
        f"Bearer {ALICE[:-1]}x",
        f"{known} ",
        "Bearer citybus_0_0",
    ]
    async with start(interceptors=[doorkeeper()]) as bus:
        answers = {await status(CALLS[method](bus, ()))}
        for value in wrong:
            answers.add(await status(CALLS[method](bus, (("authorization", value),))))
        (answer,) = answers
        assert answer[0] is grpc.StatusCode.UNAUTHENTICATED
        assert all(words in answer[1] for words in ("citybus keys new", "CITYBUS_API_KEY", "--api-key-file"))
        assert len(REFUSALS) == 1 + len(wrong)
        assert bus.loop.requests == []
        if method == "Attach":
            assert (await status(CALLS[method](bus, authorization(ALICE))))[0] is grpc.StatusCode.NOT_FOUND
        else:
            await CALLS[method](bus, authorization(ALICE))


async def test_the_tenant_is_that_of_the_key(start: Start) -> None:
    async with start(interceptors=[doorkeeper()]) as bus:
        for named in ("", "alice"):
            request = pb.GenerateRequest(text="hi", tenant=named)
            await drain(bus.stub.Generate(request, metadata=authorization(ALICE)))
        assert [request.tenant for request in bus.loop.requests] == ["alice", "alice"]
        request = pb.GenerateRequest(text="hi", tenant="bob")
        refused = await status(drain(bus.stub.Generate(request, metadata=authorization(ALICE))))
        assert refused == (
            grpc.StatusCode.PERMISSION_DENIED,
            "tenant: the API key is another tenant's; leave it empty",
        )
        assert len(bus.loop.requests) == 2


async def test_requests_of_another_tenant_are_out_of_reach(start: Start) -> None:
    async with start(b"hello", ending=None, interceptors=[doorkeeper()]) as bus:
        asked = pb.GenerateRequest(text="hi", request_id="mine", reconnect_grace_ms=60_000)
        call = bus.stub.Generate(asked, metadata=authorization(ALICE))
        await call.initial_metadata()
        for named in ("", "alice"):
            attach = pb.AttachRequest(request_id="mine", tenant=named)
            code, _ = await status(drain(bus.stub.Attach(attach, metadata=authorization(BOB))))
            assert code is (grpc.StatusCode.PERMISSION_DENIED if named else grpc.StatusCode.NOT_FOUND)
        await bus.stub.Cancel(pb.CancelRequest(request_id="mine"), metadata=authorization(BOB))
        cancel = pb.CancelRequest(request_id="mine", tenant="alice")
        assert (await status(bus.stub.Cancel(cancel, metadata=authorization(BOB))))[0] is (
            grpc.StatusCode.PERMISSION_DENIED
        )
        assert bus.loop.cancelled == []
        await bus.stub.Cancel(pb.CancelRequest(request_id="mine"), metadata=authorization(ALICE))
        assert bus.loop.cancelled == [1]
        assert (await drain(call))[-1].finish.reason == pb.FINISH_REASON_CANCELLED


async def test_limits_of_a_tenant_travel_with_a_retry_hint(start: Start) -> None:
    limits = {"alice": Limits(max_requests=1), "bob": Limits(tokens_per_minute=2)}
    async with start(b"hello", ending=None, limits_of=lambda tenant: limits.get(tenant, Limits())) as bus:
        sitting = bus.stub.Generate(pb.GenerateRequest(text="hi", tenant="alice"))
        await sitting.initial_metadata()
        for tenant, words, pushback in (("alice", "max_requests", "1000"), ("bob", "tokens_per_minute", None)):
            with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
                await bus.generate(text="hi", tenant=tenant)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert dict(caught.value.trailing_metadata() or ()).get("grpc-retry-pushback-ms") == pushback
        other = bus.stub.Generate(pb.GenerateRequest(text="hi", tenant="carol"))
        await other.initial_metadata()
        sitting.cancel()
        await until(lambda: bus.loop.cancelled == [1])
        again = bus.stub.Generate(pb.GenerateRequest(text="hi", tenant="alice"))
        await again.initial_metadata()
        assert [request.tenant for request in bus.loop.requests] == ["alice", "carol", "alice"]


async def test_counting_tokens_takes_a_seat_while_it_lasts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start(limits_of=lambda tenant: Limits(max_requests=1), interceptors=[doorkeeper()]) as bus:
        slow = Slow(bus, monkeypatch)
        first = bus.stub.CountTokens(pb.CountTokensRequest(text="hi"), metadata=authorization(ALICE))
        await slow.begun.wait()
        again = bus.stub.CountTokens(pb.CountTokensRequest(text="hi", tenant="alice"), metadata=authorization(ALICE))
        assert (await status(again))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        slow.go_on.set()
        assert (await first).num_tokens == 3
        for key in (ALICE, BOB):
            counted = await bus.stub.CountTokens(pb.CountTokensRequest(text="hi"), metadata=authorization(key))
            assert counted.num_tokens == 3
        named = pb.CountTokensRequest(text="hi", tenant="alice")
        refused = await status(bus.stub.CountTokens(named, metadata=authorization(BOB)))
        assert refused[0] is grpc.StatusCode.PERMISSION_DENIED


async def test_a_name_that_no_tenant_can_have_is_not_counted_for(start: Start) -> None:
    async with start() as bus:
        for name in ("x" * 129, "a\nb"):
            code, words = await status(bus.stub.CountTokens(pb.CountTokensRequest(text="hi", tenant=name)))
            assert (code, words) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "tenant must be at most 128 printable ASCII characters",
            )


class Slow:
    """Encodes when it is told to."""

    def __init__(self, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.ended = 0
        monkeypatch.setattr(bus.encoder, "encode", self.encode)

    async def encode(self, *prompt: object) -> tuple[int, ...]:
        self.begun.set()
        try:
            await self.go_on.wait()
        finally:
            self.ended += 1
        return (1, 2, 3)


async def test_time_limit_passes_while_the_prompt_is_encoded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start(limits_of=lambda tenant: Limits(max_requests=1)) as bus:
        slow = Slow(bus, monkeypatch)
        call = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="mine", time_limit_ms=50))
        (response,) = await drain(call)
        assert response.finish.reason == pb.FINISH_REASON_DEADLINE
        assert response.finish.usage == pb.Usage()
        assert response.finish.timings.total_ms >= 50
        assert dict(await call.initial_metadata()) == {"citybus-request-id": "mine"}
        assert slow.ended == 1
        assert bus.loop.requests == []
        assert bus.metric("request_success_total", finished_reason="deadline") == 1
        slow.go_on.set()
        await bus.generate(text="hi", request_id="mine")  # the id is free again, and the tenant's only seat


async def test_cancel_while_the_prompt_is_encoded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start() as bus:
        slow = Slow(bus, monkeypatch)
        call = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="mine", tenant="alice"))
        await slow.begun.wait()
        await bus.stub.Cancel(pb.CancelRequest(request_id="mine", tenant="bob"))
        assert slow.ended == 0
        await bus.stub.Cancel(pb.CancelRequest(request_id="mine", tenant="alice"))
        (response,) = await drain(call)
        assert response.finish.reason == pb.FINISH_REASON_CANCELLED
        assert slow.ended == 1
        assert bus.loop.requests == []


async def test_closing_the_call_while_the_prompt_is_encoded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start(limits_of=lambda tenant: Limits(max_requests=1)) as bus:
        slow = Slow(bus, monkeypatch)
        call = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="mine"))
        await slow.begun.wait()
        call.cancel()
        await until(lambda: slow.ended == 1)
        assert bus.loop.requests == []
        slow.go_on.set()
        await bus.generate(text="hi", request_id="mine")


async def test_cancel_in_the_grace_of_a_request_that_nobody_reads(start: Start) -> None:
    async with start(b"hello", ending=None) as bus:
        call = bus.stub.Generate(pb.GenerateRequest(text="hi", request_id="mine", reconnect_grace_ms=60_000))
        await call.initial_metadata()
        call.cancel()
        assert bus.loop.cancelled == []
        await bus.stub.Cancel(pb.CancelRequest(request_id="mine"))
        assert bus.loop.cancelled == [1]
        (*_, last) = await drain(bus.stub.Attach(pb.AttachRequest(request_id="mine")))
        assert last.finish.reason == pb.FINISH_REASON_CANCELLED
        assert bus.metric("request_success_total", finished_reason="cancelled") == 1
