"""The generation service: requests in, streams of tokens and text out."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import grpc
import structlog

from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from common.errors import CitybusError, Exhausted, Unavailable
from common.metrics import SchedulerMetrics
from common.step import ExecutorInfo
from scheduler_svc.core.request import FinishReason, Outcome, Request
from scheduler_svc.detokenizer import Detokenizer
from scheduler_svc.live_requests import LiveRequests
from scheduler_svc.output_stream import Delta, OutputSink, OutputStream
from scheduler_svc.prompts import ChatPrompt, PromptEncoder, check_room
from scheduler_svc.request_meter import RequestMeter
from scheduler_svc.validation import GenerateCall, check_model, validate_generate, validate_prompt

REQUEST_ID_KEY = "citybus-request-id"
"""Initial metadata that tells the id of an accepted request."""

READING_GRACE_S = 30.0

Context = grpc.aio.ServicerContext[Any, Any]

_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.DEADLINE: pb.FINISH_REASON_DEADLINE,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}


class Loop(Protocol):
    """What the frontend asks of `scheduler_svc.loop.SchedulerLoop`."""

    def info(self) -> ExecutorInfo | None:
        """The executor in use, None while there is none."""

    def next_sequence_id(self) -> int:
        """An id that no sequence has had."""

    def submit(self, request: Request, sink: OutputSink) -> None:
        """Take in a request. Raises `InvalidRequest` where it can never fit, `Unavailable` while none are taken."""

    def cancel(self, sequence_id: int) -> None:
        """End a sequence; nothing where it has ended."""


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Serves one model. `eos_token_ids` end an answer unless the request says otherwise.

    At most `max_live_requests` are served at once; `max_time_s` bounds and replaces the time limit of a request (None:
    no bound). An answer that is not read `reading_grace_s` after its time limit is given up. `clock` must be the one
    that the loop reads.
    """

    def __init__(
        self,
        loop: Loop,
        encoder: PromptEncoder,
        eos_token_ids: frozenset[int],
        metrics: SchedulerMetrics,
        *,
        max_live_requests: int = 4096,
        max_time_s: float | None = None,
        reading_grace_s: float = READING_GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._encoder = encoder
        self._eos_token_ids = eos_token_ids
        self._metrics = metrics
        self._live = LiveRequests(max_live_requests)
        self._max_time_s = max_time_s
        self._reading_grace_s = reading_grace_s
        self._clock = clock

    # A coroutine that writes, not a generator: a cancelled call is then cancelled inside it, at whatever it waits for.
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        arrival = self._clock()
        with self._counting_failures():
            call = validate_generate(request, self._model())
            with self._live.hold(call.tenant, call.request_id):
                structlog.contextvars.bind_contextvars(request_id=call.request_id)
                await self._serve(call, arrival, context)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        model = self._model()
        served = pb.Model(
            name=model.model,
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            has_chat_template=self._encoder.has_chat_template,
        )
        return pb.ListModelsResponse(models=[served])

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        model = self._model()
        check_model(request.model, model)
        with self._live.hold("", uuid.uuid4().hex):  # it too may bring many megabytes and wait for a thread
            ids = await self._encoder.encode(validate_prompt(request), model.vocab_size, model.max_model_len)
        return pb.CountTokensResponse(num_tokens=len(ids))

    async def _serve(self, call: GenerateCall, arrival: float, context: Context) -> None:
        model = self._model()
        prompt = await self._encoder.encode(call.prompt, model.vocab_size, model.max_model_len)
        check_room(len(prompt), model.max_model_len)
        request = self._request(call, prompt, arrival)
        stream = self._stream(call, request)
        self._loop.submit(request, stream)
        try:
            await context.send_initial_metadata(((REQUEST_ID_KEY, call.request_id),))
            async with asyncio.timeout(self._reading_time(request)):
                await _relay(stream, context)
        except TimeoutError:
            raise Exhausted("the answer was not read within its time limit") from None
        finally:
            self._loop.cancel(request.sequence_id)

    def _request(self, call: GenerateCall, prompt: tuple[int, ...], arrival: float) -> Request:
        limits = [limit for limit in (call.time_limit_s, self._max_time_s) if limit is not None]
        return Request(
            sequence_id=self._loop.next_sequence_id(),
            prompt=prompt,
            sampling=call.sampling,
            arrival=arrival,
            stop_token_ids=call.stop_token_ids | (frozenset() if call.ignore_eos else self._eos_token_ids),
            max_tokens=call.max_tokens,
            priority=call.priority,
            tenant=call.tenant,
            deadline=arrival + min(limits) if limits else None,
            cache_salt=call.cache_salt,
        )

    def _reading_time(self, request: Request) -> float | None:
        """Seconds until the answer has to be read: who never reads would keep a place for ever."""
        return None if request.deadline is None else request.deadline - self._clock() + self._reading_grace_s

    def _stream(self, call: GenerateCall, request: Request) -> OutputStream:
        tokenizer = self._encoder.tokenizer
        continued = () if isinstance(call.prompt, ChatPrompt) else request.prompt
        hidden = request.stop_token_ids | (tokenizer.control_ids if call.skip_special_tokens else frozenset())
        meter = RequestMeter(self._metrics, self._clock, request.arrival)
        return OutputStream(Detokenizer(tokenizer.token_bytes, continued, hidden), call.stop_texts, meter)

    def _model(self) -> ExecutorInfo:
        model = self._loop.info()
        if model is None:
            raise Unavailable("no executor is connected; try again", retry_after_s=1.0)
        return model

    @contextmanager
    def _counting_failures(self) -> Iterator[None]:
        try:
            yield
        except CitybusError as error:
            self._metrics.request_failures.labels(code=error.code.name).inc()
            raise


async def _relay(stream: OutputStream, context: Context) -> None:
    """Send everything that comes out of `stream`; raises the error it ends with."""
    outcome = None
    while outcome is None:
        delta = await stream.next()
        outcome = delta.outcome
        await context.write(_response(delta))


def _response(delta: Delta) -> pb.GenerateResponse:
    return pb.GenerateResponse(
        first_index=delta.first_index,
        token_ids=delta.token_ids,
        text=delta.text,
        finish=_finish(delta.outcome, delta.stop_text) if delta.outcome else None,
    )


def _finish(outcome: Outcome, stop_text: str | None) -> pb.Finish:
    finish = pb.Finish(
        reason=_REASONS[outcome.reason],
        usage=pb.Usage(
            prompt_tokens=outcome.num_prompt_tokens,
            completion_tokens=outcome.num_output_tokens,
            cached_tokens=outcome.num_cached_tokens,
        ),
        timings=pb.Timings(
            queued_ms=1000 * (outcome.total_s if outcome.queued_s is None else outcome.queued_s),
            first_token_ms=1000 * (outcome.first_token_s or 0.0),
            total_ms=1000 * outcome.total_s,
        ),
    )
    if stop_text is not None:
        finish.stop_text = stop_text
    elif outcome.stop_token_id is not None:
        finish.stop_token_id = outcome.stop_token_id
    return finish
