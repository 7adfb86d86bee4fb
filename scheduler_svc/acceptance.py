"""Makes of a valid call what the loop, its readers and the journal keep of it; and of the journal's record again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from citybus.journal.v1 import journal_pb2 as journal_pb
from citybus.v1 import generation_pb2 as pb
from common.errors import CitybusError
from common.metrics import SchedulerMetrics
from common.step import ExecutorInfo
from scheduler_svc.annotations import Annotations, Asked
from scheduler_svc.core.request import Request
from scheduler_svc.detokenizer import LONGEST_CHARACTER, Detokenizer
from scheduler_svc.journal_file import Entry
from scheduler_svc.output_stream import OutputObserver, OutputStream
from scheduler_svc.prompts import ChatPrompt, PromptEncoder
from scheduler_svc.request_meter import RequestMeter
from scheduler_svc.request_sampling import resolved_sampling, sample_of
from scheduler_svc.ride import Ride, Sample, StreamMaker
from scheduler_svc.validation import GenerateCall, validate_generate


@dataclass(frozen=True, slots=True)
class Accepted:
    """Requests for the loop, one a sample or one for a search; the ride that readers know them by; and what the journal
    keeps of it.
    """

    requests: tuple[Request, ...]
    ride: Ride
    record: bytes

    @property
    def served(self) -> list[tuple[Request, Sequence[Sample]]]:
        """The requests, each with the samples that are its answers."""
        if len(self.requests) == 1:
            return [(self.requests[0], self.ride.samples)]
        return [(request, [sample]) for request, sample in zip(self.requests, self.ride.samples, strict=True)]


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
        sequence_ids: Sequence[int],
        arrival: float,
        model: ExecutorInfo,
    ) -> Accepted:
        """A request that has just come, with its prompt in tokens and an id for each of its samples or beams.

        Raises `InvalidRequest`.
        """
        record = journal_pb.AcceptedRequest(
            request=message, stands_alone=isinstance(call.prompt, ChatPrompt), digest=digest_of(message)
        )
        record.request.request_id = call.request_id
        record.request.sampling.seed = call.sampling.seed
        record.request.tokens.CopyFrom(pb.TokenPrompt(ids=prompt))
        begun = [False] * len(sequence_ids)
        return self._accepted(record, call, prompt, sequence_ids, arrival, call.grace_s, model, begun)

    def restore(self, entries: Sequence[Entry], model: ExecutorInfo, least_grace_s: float) -> Accepted:
        """A request that the journal knows by these entries, one a sample.

        Raises `CitybusError` where `model` cannot serve it, and `DecodeError`.
        """
        first = entries[0]
        record = journal_pb.AcceptedRequest.FromString(first.request)
        call = validate_generate(record.request, model)
        if call.answers.num_samples != len(entries):
            raise CitybusError(f"the journal has {len(entries)} of its {call.answers.num_samples} samples")
        arrival = self._clock() - max(0.0, time.time() - first.accepted)
        prompt = tuple(record.request.tokens.ids)
        grace_s = max(call.grace_s, least_grace_s)
        numbers = [entry.sequence_id for entry in entries]
        begun = [bool(entry.tokens) for entry in entries]
        return self._accepted(record, call, prompt, numbers, arrival, grace_s, model, begun)

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
        sequence_ids: Sequence[int],
        arrival: float,
        grace_s: float,
        model: ExecutorInfo,
        begun: Sequence[bool],
    ) -> Accepted:
        stop_token_ids = call.stop_token_ids | (frozenset() if call.ignore_eos else self._end_tokens(model))
        bad_words = [spelling for word in call.bad_words for spelling in self._tokenizer.spellings(word)]
        request = Request(
            sequence_id=sequence_ids[0],
            prompt=prompt,
            sampling=resolved_sampling(call, stop_token_ids, bad_words, model),
            arrival=arrival,
            stop_token_ids=stop_token_ids,
            max_tokens=call.max_tokens,
            priority=call.priority,
            tenant=call.tenant,
            deadline=self.deadline_of(call, arrival),
            cache_salt=self._salt(call),
            group=sequence_ids[0] if call.answers.num_samples > 1 and call.answers.beams is None else None,
            beams=call.answers.beams,
            is_ranked=call.answers.is_ranked,
        )
        key = (call.tenant, call.request_id)
        make = self._stream_maker(record, call, prompt, request.stop_token_ids)
        samples = [
            Sample(
                index,
                sequence_id,
                make,
                self._meter(arrival, call.tenant, index, begun=begun[index]),
                self._annotations(call, prompt, index),
            )
            for index, sequence_id in enumerate(sequence_ids[: call.answers.num_samples])
        ]
        ride = Ride(key, samples, call.answers, record.digest, grace_s, request.deadline)
        if call.answers.beams is not None:
            return Accepted((request,), ride, record.SerializeToString())
        requests = tuple(sample_of(request, index, sequence_id) for index, sequence_id in enumerate(sequence_ids))
        return Accepted(requests, ride, record.SerializeToString())

    def _end_tokens(self, model: ExecutorInfo) -> frozenset[int]:
        """Those that the model has: its folder may name others, which its tokenizer knows and its weights do not."""
        return frozenset(token_id for token_id in self._eos_token_ids if token_id < model.vocab_size)

    def _meter(self, arrival: float, tenant: str, index: int, *, begun: bool) -> RequestMeter:
        return RequestMeter(self._metrics, self._clock, arrival, tenant, begun=begun, has_prompt=index == 0)

    def _stream_maker(
        self,
        record: journal_pb.AcceptedRequest,
        call: GenerateCall,
        prompt: tuple[int, ...],
        stop_token_ids: frozenset[int],
    ) -> StreamMaker:
        continued = () if record.stands_alone else prompt[-LONGEST_CHARACTER:]  # rides outlive their prompts
        stops, min_tokens, include_stop = call.stop_texts, call.sampling.min_tokens, call.include_stop
        special = self._special(call)
        hidden = special if include_stop else stop_token_ids | special

        def make(observer: OutputObserver, first_index: int, sample: int) -> OutputStream:
            detokenizer = Detokenizer(self._tokenizer.token_bytes, continued, hidden)
            return OutputStream(
                detokenizer, stops, observer, first_index, sample, min_tokens=min_tokens, include_stop=include_stop
            )

        return make

    def _special(self, call: GenerateCall) -> frozenset[int]:
        """Tokens that give no text."""
        return self._tokenizer.control_ids if call.skip_special_tokens else frozenset()

    def _annotations(self, call: GenerateCall, prompt: tuple[int, ...], index: int) -> Annotations | None:
        """What sample number `index` is told besides; the prompt is told once."""
        sampling = call.sampling
        logprobs, is_first = sampling.num_logprobs is not None, index == 0
        echo = self._tokenizer.token_bytes.text_of(prompt, self._special(call)) if call.echo and is_first else None
        asked = Asked(logprobs, is_first and sampling.num_prompt_logprobs is not None, echo)
        return Annotations(asked, prompt) if asked.anything else None


def digest_of(message: pb.GenerateRequest) -> bytes:
    """Equal requests have equal digests."""
    return blake2b(message.SerializeToString(deterministic=True), digest_size=16).digest()
