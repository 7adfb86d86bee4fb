"""Makes of a valid call what the loop, its readers and the journal keep of it; and of the journal's record again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from citybus.journal.v1 import journal_pb2 as journal_pb
from citybus.v1 import generation_pb2 as pb
from common.metrics import SchedulerMetrics
from common.step import ExecutorInfo
from scheduler_svc.annotations import Annotations, Asked
from scheduler_svc.core.request import Request
from scheduler_svc.detokenizer import LONGEST_CHARACTER, Detokenizer
from scheduler_svc.journal_file import Entry
from scheduler_svc.output_stream import OutputObserver, OutputStream
from scheduler_svc.prompts import ChatPrompt, PromptEncoder
from scheduler_svc.request_meter import RequestMeter
from scheduler_svc.rides import Ride
from scheduler_svc.sampling_limits import with_bans
from scheduler_svc.validation import GenerateCall, validate_generate


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request for the loop, the ride its readers know it by, and what the journal keeps of it."""

    request: Request
    ride: Ride
    record: bytes


class Acceptance:
    """Accepts for one model. `eos_token_ids` end an answer unless the request says otherwise; `max_time_s` bounds and
    replaces the time limit of a request (None: no bound); `clock` is the one that the loop reads. `cache_by_tenant`:
    prefixes are shared within a tenant only.
    """

    def __init__(
        self,
        encoder: PromptEncoder,
        eos_token_ids: frozenset[int],
        metrics: SchedulerMetrics,
        max_time_s: float | None,
        clock: Callable[[], float],
        *,
        cache_by_tenant: bool = False,
    ) -> None:
        self._tokenizer = encoder.tokenizer
        self._eos_token_ids = eos_token_ids
        self._metrics = metrics
        self._max_time_s = max_time_s
        self._clock = clock
        self._cache_by_tenant = cache_by_tenant

    def accept(
        self,
        message: pb.GenerateRequest,
        call: GenerateCall,
        prompt: tuple[int, ...],
        *,
        sequence_id: int,
        arrival: float,
        vocab_size: int,
    ) -> Accepted:
        """A request that has just come, with its prompt in tokens. Raises `InvalidRequest`."""
        record = journal_pb.AcceptedRequest(
            request=message, stands_alone=isinstance(call.prompt, ChatPrompt), digest=digest_of(message)
        )
        record.request.request_id = call.request_id
        record.request.sampling.seed = call.sampling.seed
        record.request.tokens.CopyFrom(pb.TokenPrompt(ids=prompt))
        return self._accepted(record, call, prompt, sequence_id, arrival, call.grace_s, vocab_size, begun=False)

    def restore(self, entry: Entry, model: ExecutorInfo, least_grace_s: float) -> Accepted:
        """A request that the journal knows. Raises `CitybusError` where `model` cannot serve it, and `DecodeError`."""
        record = journal_pb.AcceptedRequest.FromString(entry.request)
        call = validate_generate(record.request, model)
        arrival = self._clock() - max(0.0, time.time() - entry.accepted)
        prompt = tuple(record.request.tokens.ids)
        grace_s = max(call.grace_s, least_grace_s)
        begun, number = bool(entry.tokens), entry.sequence_id
        return self._accepted(record, call, prompt, number, arrival, grace_s, model.vocab_size, begun=begun)

    def deadline_of(self, call: GenerateCall, arrival: float) -> float | None:
        """When the time of a request is over, on the clock of `arrival`; None: never."""
        limits = [limit for limit in (call.time_limit_s, self._max_time_s) if limit is not None]
        return arrival + min(limits) if limits else None

    def _salt(self, call: GenerateCall) -> str | None:
        """Of the cache; no two tenants can have the same where each is to have its own."""
        return json.dumps([call.tenant, call.cache_salt]) if self._cache_by_tenant else call.cache_salt

    def _accepted(
        self,
        record: journal_pb.AcceptedRequest,
        call: GenerateCall,
        prompt: tuple[int, ...],
        sequence_id: int,
        arrival: float,
        grace_s: float,
        vocab_size: int,
        *,
        begun: bool,
    ) -> Accepted:
        stop_token_ids = call.stop_token_ids | (frozenset() if call.ignore_eos else self._eos_token_ids)
        bad_words = [spelling for word in call.bad_words for spelling in self._tokenizer.spellings(word)]
        request = Request(
            sequence_id=sequence_id,
            prompt=prompt,
            sampling=with_bans(call.sampling, stop_token_ids, bad_words, vocab_size),
            arrival=arrival,
            stop_token_ids=stop_token_ids,
            max_tokens=call.max_tokens,
            priority=call.priority,
            tenant=call.tenant,
            deadline=self.deadline_of(call, arrival),
            cache_salt=self._salt(call),
        )
        continued = () if record.stands_alone else prompt[-LONGEST_CHARACTER:]  # rides outlive their prompts
        stops, min_tokens, include_stop = call.stop_texts, call.sampling.min_tokens, call.include_stop
        special = self._tokenizer.control_ids if call.skip_special_tokens else frozenset()
        hidden = special if include_stop else stop_token_ids | special

        def make(observer: OutputObserver, first_index: int) -> OutputStream:
            detokenizer = Detokenizer(self._tokenizer.token_bytes, continued, hidden)
            return OutputStream(
                detokenizer, stops, observer, first_index, min_tokens=min_tokens, include_stop=include_stop
            )

        meter = RequestMeter(self._metrics, self._clock, arrival, call.tenant, begun=begun)
        ride = Ride(
            (call.tenant, call.request_id),
            sequence_id,
            record.digest,
            grace_s,
            request.deadline,
            make,
            meter,
            self._annotations(call, prompt, special),
        )
        return Accepted(request, ride, record.SerializeToString())

    def _annotations(self, call: GenerateCall, prompt: tuple[int, ...], special: frozenset[int]) -> Annotations | None:
        sampling = call.sampling
        echo = self._tokenizer.token_bytes.text_of(prompt, special) if call.echo else None
        asked = Asked(sampling.num_logprobs is not None, sampling.num_prompt_logprobs is not None, echo)
        return Annotations(asked, prompt) if asked.anything else None


def digest_of(message: pb.GenerateRequest) -> bytes:
    """Equal requests have equal digests."""
    return blake2b(message.SerializeToString(deterministic=True), digest_size=16).digest()
