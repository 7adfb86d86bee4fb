"""The generation service: requests in, streams of tokens and text out."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
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
from scheduler_svc.form_check import FormCheck
from scheduler_svc.journal import Journal
from scheduler_svc.journal_file import Entry
from scheduler_svc.output_stream import Delta, OutputSink
from scheduler_svc.preparation import prepare
from scheduler_svc.prompts import PromptEncoder
from scheduler_svc.quotas import Limits, Quotas
from scheduler_svc.recovery import restored_of
from scheduler_svc.relay import relay
from scheduler_svc.responses import response_of
from scheduler_svc.restored import Restored
from scheduler_svc.ride import Reading, Ride
from scheduler_svc.rides import Rides
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

    def next_sequence_ids(self, count: int) -> Sequence[int]:
        """Consecutive ids that no sequence has had."""

    def submit(self, request: Request, sinks: Sequence[OutputSink]) -> None:
        """Take in a request and where its answers go. Raises `InvalidRequest` (it never fits) or `Unavailable`."""

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
        forms: FormCheck,
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
        self._forms = forms
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
        requests = groupby(self._journal.take_entries(), key=lambda entry: entry.first_id)
        return [each for _, entries in requests for each in self._restore(list(entries), model)]

    # A coroutine that writes, not a generator: a cancelled call is then cancelled inside it, at whatever it waits for.
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        arrival = self._clock()
        with self._counting_failures():
            call = validate_generate(request, self._model())
            structlog.contextvars.bind_contextvars(request_id=call.request_id)
            ride = self._rides.joinable((call.tenant, call.request_id), lambda: digest_of(request))
            if ride is not None:
                await self._follow(ride, ride.attach(()), context)
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
            await self._follow(ride, ride.attach(request.next_indexes or (request.next_index,)), context)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        refuse_unknown_fields(request)
        if not self._encodings.cancel((request.tenant, request.request_id)):
            with contextlib.suppress(NotFound):
                self._rides.cancel(self._find(request.tenant, request.request_id))
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
        with self._rides.reserve(("", uuid.uuid4().hex)), self._quotas.seats(tenant) as (seat,):
            ids = await self._encoder.encode(validate_prompt(request), model.vocab_size, model.max_model_len)
            seat.end()
        return pb.CountTokensResponse(num_tokens=len(ids))

    async def _accept(self, request: pb.GenerateRequest, call: GenerateCall, arrival: float) -> tuple[Ride, Reading]:
        """Take a request in, into the journal too; another reader may have come by then. Raises `Unencoded`."""
        key, wanted = (call.tenant, call.request_id), call.answers
        reserved = self._rides.reserve(key, wanted.num_sequences)
        with reserved, self._quotas.seats(call.tenant, wanted.num_samples, wanted.num_sequences) as seats:
            model, deadline = self._model(), self._acceptance.deadline_of(call, arrival)
            left = None if deadline is None else deadline - self._clock()
            prompt = await self._encodings.run(key, prepare(call, model, self._encoder, self._forms), left)
            for index, seat in enumerate(seats):
                seat.accept(0 if index else len(prompt))
            numbers = self._loop.next_sequence_ids(wanted.num_sequences)
            accepted = self._acceptance.accept(
                request, call, prompt, sequence_ids=numbers, arrival=arrival, model=model
            )
            free = iter(seats)
            for each, sinks in accepted.served:
                self._loop.submit(each, [Charged(sink, next(free)) for sink in sinks])
            self._rides.add(accepted.ride)
        ride, stream = accepted.ride, accepted.ride.stream
        self._rides.board(ride)
        try:
            await self._journal.accept([sample.sequence_id for sample in ride.samples], accepted.record)
        except BaseException:
            self._rides.cancel(ride)
            raise
        return ride, stream

    async def _follow(self, ride: Ride, stream: Reading, context: Context) -> None:
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
        await context.send_initial_metadata(((REQUEST_ID_KEY, call.request_id),))
        for sample in range(call.answers.num_answers):
            self._metrics.request_success.labels(finished_reason=outcome.reason.value).inc()
            await context.write(response_of(Delta(0, (), "", outcome, sample=sample)))

    def _reading_time(self, ride: Ride) -> float | None:
        """Seconds until the answer has to be read: who never reads would keep a place for ever."""
        return None if ride.deadline is None else max(0.0, ride.deadline - self._clock()) + self._reading_grace_s

    def _restore(self, entries: list[Entry], model: ExecutorInfo) -> list[Restored]:
        """What is to run on of a request, which the journal knows by these entries, one a sample."""
        try:
            has_ended = all(entry.outcome for entry in entries)
            accepted = self._acceptance.restore(entries, model, 0.0 if has_ended else self._attach_grace_s)
        except (CitybusError, DecodeError) as error:
            log.error("request of the journal cannot be served", sequence=entries[0].sequence_id, reason=str(error))
            for entry in entries:
                self._journal.end(entry.sequence_id, unserved(str(error)))
            return []
        ride, restored = accepted.ride, restored_of(entries, accepted, self._quotas)
        if has_ended:
            self._rides.add_ended(ride)
        else:
            self._rides.add(ride)
            self._rides.leave(ride)
        return restored

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
