"""The generation service: requests in, streams of tokens and text out."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import grpc
import structlog
from google.protobuf.message import DecodeError

from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from common.errors import CitybusError, Exhausted, NotFound, Unavailable
from common.metrics import SchedulerMetrics
from common.step import ExecutorInfo
from scheduler_svc.acceptance import Acceptance, digest_of
from scheduler_svc.charged import Charged
from scheduler_svc.core.request import Request, ended_unencoded, unserved
from scheduler_svc.encodings import Encodings, Unencoded
from scheduler_svc.journal import Journal
from scheduler_svc.journal_file import Entry
from scheduler_svc.journal_records import beginning_from_json, outcome_from_json
from scheduler_svc.output_stream import Delta, OutputSink, OutputStream
from scheduler_svc.prompts import PromptEncoder, check_room
from scheduler_svc.quotas import Limits, Quotas
from scheduler_svc.relay import relay
from scheduler_svc.responses import response_of
from scheduler_svc.restored import Restored
from scheduler_svc.rides import Ride, Rides
from scheduler_svc.sampling_limits import check_prompt_logprobs
from scheduler_svc.unknown_fields import refuse_unknown_fields
from scheduler_svc.validation import GenerateCall, check_model, check_tenant, validate_generate, validate_prompt

REQUEST_ID_KEY = "citybus-request-id"
"""Initial metadata that tells the id of an accepted request."""

READING_GRACE_S = 30.0

log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]


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
    """Serves one model, which `acceptance` accepts for.

    At most `max_live_requests` are served at once, and of each tenant as many as `limits_of` lets it have. A request
    that a successor of this process takes over goes on for at least `attach_grace_s` seconds without a reader.
    """

    def __init__(
        self,
        loop: Loop,
        encoder: PromptEncoder,
        acceptance: Acceptance,
        journal: Journal,
        metrics: SchedulerMetrics,
        *,
        max_live_requests: int = 4096,
        limits_of: Callable[[str], Limits] = lambda tenant: Limits(),
        attach_grace_s: float = 30.0,
        reading_grace_s: float = READING_GRACE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = loop
        self._encoder = encoder
        self._acceptance = acceptance
        self._journal = journal
        self._metrics = metrics
        self._rides = Rides(max_live_requests, loop.cancel)
        self._quotas = Quotas(limits_of, clock)
        self._encodings = Encodings()
        self._attach_grace_s = attach_grace_s
        self._reading_grace_s = reading_grace_s
        self._clock = clock

    def recover(self, model: ExecutorInfo) -> list[Restored]:
        """The live requests of the journal, now that the model is known; those that ended can be read again."""
        found = [self._restore(entry, model) for entry in self._journal.take_entries()]
        return [each for each in found if each is not None]

    # A coroutine that writes, not a generator: a cancelled call is then cancelled inside it, at whatever it waits for.
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        arrival = self._clock()
        with self._counting_failures():
            call = validate_generate(request, self._model())
            structlog.contextvars.bind_contextvars(request_id=call.request_id)
            ride = self._rides.joinable((call.tenant, call.request_id), digest_of(request))
            if ride is not None:
                await self._follow(ride, ride.attach(0), context)
                return
            try:
                ride, stream = await self._accept(request, call, arrival)
            except Unencoded as ended:
                await self._tell_end(ended, call, arrival, context)
                return
            await self._follow(ride, stream, context)

    async def Attach(self, request: pb.AttachRequest, context: Context) -> None:  # type: ignore[override]
        with self._counting_failures():
            refuse_unknown_fields(request)
            ride = self._find(request.tenant, request.request_id)
            await self._follow(ride, ride.attach(request.next_index), context)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        refuse_unknown_fields(request)
        if not self._encodings.cancel((request.tenant, request.request_id)):
            with contextlib.suppress(NotFound):
                self._loop.cancel(self._find(request.tenant, request.request_id).sequence_id)
        return pb.CancelResponse()

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        refuse_unknown_fields(request)
        model = self._model()
        served = pb.Model(
            name=model.model,
            max_model_len=model.max_model_len,
            vocab_size=model.vocab_size,
            has_chat_template=self._encoder.has_chat_template,
        )
        return pb.ListModelsResponse(models=[served])

    async def CountTokens(self, request: pb.CountTokensRequest, context: Context) -> pb.CountTokensResponse:
        model, tenant = self._model(), check_tenant(request.tenant)
        check_model(request.model, model)
        # It too may bring many megabytes and wait for a thread.
        with self._rides.reserve(("", uuid.uuid4().hex)), self._quotas.seat(tenant) as seat:
            ids = await self._encoder.encode(validate_prompt(request), model.vocab_size, model.max_model_len)
            seat.end()
        return pb.CountTokensResponse(num_tokens=len(ids))

    async def _accept(
        self, request: pb.GenerateRequest, call: GenerateCall, arrival: float
    ) -> tuple[Ride, OutputStream]:
        """Take a request in; it is in the journal when this returns. Another reader may have come by then.

        Raises `Unencoded` where it ends before that.
        """
        key = (call.tenant, call.request_id)
        with self._rides.reserve(key), self._quotas.seat(call.tenant) as seat:
            model, deadline = self._model(), self._acceptance.deadline_of(call, arrival)
            prompt = await self._encodings.run(
                key,
                self._encoder.encode(call.prompt, model.vocab_size, model.max_model_len),
                None if deadline is None else deadline - self._clock(),
            )
            check_room(len(prompt), model.max_model_len)
            check_prompt_logprobs(len(prompt), call.sampling)
            seat.accept(len(prompt))
            number = self._loop.next_sequence_id()
            accepted = self._acceptance.accept(
                request, call, prompt, sequence_id=number, arrival=arrival, vocab_size=model.vocab_size
            )
            self._loop.submit(accepted.request, Charged(accepted.ride, seat))
            self._rides.add(accepted.ride)
        ride, stream = accepted.ride, accepted.ride.stream
        self._rides.board(ride)
        try:
            await self._journal.accept(number, accepted.record)
        except BaseException:
            self._loop.cancel(number)
            raise
        return ride, stream

    async def _follow(self, ride: Ride, stream: OutputStream, context: Context) -> None:
        """Send an answer to a reader, until it ends or the reader goes."""
        if ride.stream is stream:
            self._rides.board(ride)
        try:
            await context.send_initial_metadata(((REQUEST_ID_KEY, ride.key[1]),))
            async with asyncio.timeout(self._reading_time(ride)):
                await relay(ride, stream, context)
            ride.was_read_to_the_end = True
        except TimeoutError:
            raise Exhausted("the answer was not read within its time limit") from None
        finally:
            if ride.stream is stream:
                self._rides.leave(ride)

    async def _tell_end(self, ended: Unencoded, call: GenerateCall, arrival: float, context: Context) -> None:
        """The whole answer to a request that has ended before it was in the queue."""
        outcome = ended_unencoded(ended.reason, self._clock() - arrival)
        self._metrics.request_success.labels(finished_reason=outcome.reason.value).inc()
        await context.send_initial_metadata(((REQUEST_ID_KEY, call.request_id),))
        await context.write(response_of(Delta(0, (), "", outcome)))

    def _reading_time(self, ride: Ride) -> float | None:
        """Seconds until the answer has to be read: who never reads would keep a place for ever."""
        return None if ride.deadline is None else max(0.0, ride.deadline - self._clock()) + self._reading_grace_s

    def _restore(self, entry: Entry, model: ExecutorInfo) -> Restored | None:
        try:
            least_grace_s = 0.0 if entry.outcome else self._attach_grace_s
            accepted = self._acceptance.restore(entry, model, least_grace_s)
        except (CitybusError, DecodeError) as error:
            log.error("request of the journal cannot be served", sequence=entry.sequence_id, reason=str(error))
            self._journal.end(entry.sequence_id, unserved(str(error)))
            return None
        stop = accepted.ride.restore(entry.tokens)
        if entry.outcome is not None:
            self._rides.add_ended(accepted.ride, outcome_from_json(entry.outcome))
            return None
        self._rides.add(accepted.ride)
        self._rides.leave(accepted.ride)
        beginning = beginning_from_json(entry.beginning) if entry.beginning else None
        seat = self._quotas.restored_seat(accepted.request.tenant, len(accepted.request.prompt), len(entry.tokens))
        return Restored(accepted.request, entry.tokens, Charged(accepted.ride, seat), stop, beginning)

    def _find(self, tenant: str, request_id: str) -> Ride:
        try:
            return self._rides.find((tenant, request_id))
        except NotFound:
            self._model()  # without it, nothing is read yet of a predecessor, or a successor knows more
            raise

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
