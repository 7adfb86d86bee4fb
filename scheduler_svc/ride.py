"""One accepted request as its readers know it: the samples it asked for, each with or without a reader."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from common.errors import Aborted, CitybusError, InvalidRequest
from scheduler_svc.annotations import Annotations
from scheduler_svc.answer_params import AnswerParams
from scheduler_svc.core.request import FinishReason, Outcome, SequenceUpdate
from scheduler_svc.output_stream import Delta, OutputObserver, OutputStream, TextStop
from scheduler_svc.ranked_stream import RankedStream
from scheduler_svc.sample_streams import SampleStreams

_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.DEADLINE)

Key = tuple[str, str]
"""(tenant, request id)."""


class StreamMaker(Protocol):
    """Makes the stream of one sample."""

    def __call__(self, observer: OutputObserver, first_index: int, sample: int) -> OutputStream:
        """A stream that gives tokens from number `first_index` on; `observer` counts what is pushed."""


class Reading(Protocol):
    """What a reader takes the news of a request from."""

    async def next(self) -> Delta:
        """What has gathered of one sample; not to be called after every sample's outcome. Raises `CitybusError`."""

    def fail(self, error: CitybusError) -> None:
        """Nothing more will come."""


class _Silent:
    """Counts nothing: what is told again was counted before."""

    def on_tokens(self, count: int) -> None:
        return

    def on_outcome(self, outcome: Outcome) -> None:
        return


class Sample:
    """One answer to a request: an `OutputSink` that remembers its tokens, so that a reader can start at any of them.

    `annotations` is what its readers are told besides, None where it did not ask; `when_ended` is called at its end.
    """

    def __init__(
        self,
        index: int,
        sequence_id: int,
        make: StreamMaker,
        meter: OutputObserver,
        annotations: Annotations | None,
    ) -> None:
        self.annotations = annotations
        self.sequence_id = sequence_id
        self.ending: Outcome | CitybusError | None = None
        self.when_ended: Callable[[Sample], None] = lambda sample: None
        self.stream = make(meter, 0, index)
        self._index = index
        self._make = make
        self._meter = meter
        self._tokens = array("I")
        self._stop: TextStop | None = None

    @property
    def error(self) -> CitybusError | None:
        """What it failed with."""
        return self.ending if isinstance(self.ending, CitybusError) else None

    @property
    def is_answered(self) -> bool:
        """Whether it has ended, and neither failed nor was cancelled."""
        return isinstance(self.ending, Outcome) and self.ending.reason in _ANSWERED

    def push(self, update: SequenceUpdate) -> TextStop | None:
        if self.ending is not None:
            return None  # another sample has failed, and this one with it
        if self.annotations is not None:
            self.annotations.take(update)
        if not self._stop:
            self._tokens.extend(update.token_ids)
        self._note(self.stream.push(update))
        if update.outcome is not None:
            self._end(update.outcome)
        return self._stop if update.outcome is None else None

    def fail(self, error: CitybusError) -> None:
        if self.ending is None:
            self.stream.fail(error)
            self._end(error)

    def restore(self, tokens: Sequence[int]) -> TextStop | None:
        """It has these tokens from a time before this process; a `TextStop` says that they end it."""
        self._tokens.extend(tokens)
        self._note(self.stream.replay(tokens))
        return self._stop

    def ended_before(self, outcome: Outcome) -> None:
        """It ended so, before this process began."""
        self._end_with(outcome)

    def check_start(self, next_index: int) -> None:
        """Raises `InvalidRequest` where the answer ended before token number `next_index`."""
        if self.ending is not None and next_index > len(self._tokens):
            raise InvalidRequest(f"next_index: the answer has {len(self._tokens)} tokens only")

    def attach(self, next_index: int) -> OutputStream:
        """A new stream of it, from token number `next_index` on."""
        self.stream = self._make(self._meter if self.ending is None else _Silent(), next_index, self._index)
        self.stream.replay(self._tokens)
        if isinstance(self.ending, CitybusError):
            self.stream.fail(self.ending)
        elif self.ending is not None:
            self.stream.push(SequenceUpdate(self.sequence_id, len(self._tokens), (), self.ending))
        return self.stream

    def _note(self, stop: TextStop | None) -> None:
        if stop is not None:
            self._stop = stop
            del self._tokens[stop.num_tokens :]

    def _end(self, ending: Outcome | CitybusError) -> None:
        self._end_with(ending)
        self.when_ended(self)

    def _end_with(self, ending: Outcome | CitybusError) -> None:
        self.ending = _ending_of(ending)
        if self.annotations is not None:
            self.annotations.end()


class Ride:
    """One accepted request. It ends when all its samples have; where one of them fails, all do.

    `answers` says how many it tells: all its samples, or the best of them. `grace_s` is how long it goes on without a
    reader, `deadline` when its time limit passes; `digest` tells whether a request is the same one again.
    """

    def __init__(
        self,
        key: Key,
        samples: Sequence[Sample],
        answers: AnswerParams,
        digest: bytes,
        grace_s: float,
        deadline: float | None,
    ) -> None:
        self.key = key
        self.samples = samples
        self.answers = answers
        self.digest = digest
        self.grace_s = grace_s
        self.deadline = deadline
        self.has_reader = False
        self.was_read_to_the_end = False
        self.stream = self._joined([0] * answers.num_answers, [sample.stream for sample in samples])
        self.when_ended: Callable[[Ride], None] = lambda ride: None
        for sample in samples:
            sample.when_ended = self._note_end

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return all(sample.ending is not None for sample in self.samples)

    @property
    def is_lost(self) -> bool:
        """Whether it has failed or was cancelled."""
        return self.has_ended and not all(sample.is_answered for sample in self.samples)

    def attach(self, next_indexes: Sequence[int]) -> Reading:
        """The stream of a new reader, from these tokens of the samples on; the reader before it gets ABORTED.

        Samples beyond `next_indexes` start at their first token. Raises `InvalidRequest` where there is no such
        sample, or one ended before that token.
        """
        num_answers = self.answers.num_answers
        if len(next_indexes) > num_answers:
            raise InvalidRequest(f"next_indexes: the request has {num_answers} samples only")
        starts = [*next_indexes, *([0] * (num_answers - len(next_indexes)))]
        read_from = [0] * len(self.samples) if self.answers.is_ranked else starts
        for sample, start in zip(self.samples, read_from, strict=True):
            sample.check_start(start)
        self.stream.fail(Aborted("another reader has taken this answer over"))
        parts = [sample.attach(start) for sample, start in zip(self.samples, read_from, strict=True)]
        self.stream = self._joined(starts, parts)
        return self.stream

    def _joined(self, starts: Sequence[int], parts: Sequence[OutputStream]) -> Reading:
        if self.answers.is_ranked:
            return RankedStream(SampleStreams(parts), len(parts), starts)
        return parts[0] if len(parts) == 1 else SampleStreams(parts)

    def _note_end(self, sample: Sample) -> None:
        others = [one for one in self.samples if one is not sample]
        if sample.error is not None:
            if any(one.error is sample.error for one in others):
                return  # it fails with another sample
            for one in others:
                one.fail(sample.error)
        if self.has_ended:
            self.when_ended(self)


def _ending_of(ending: Outcome | CitybusError) -> Outcome | CitybusError:
    if isinstance(ending, Outcome) and ending.reason is FinishReason.ERROR:
        return CitybusError(ending.error or "the request failed")
    return ending
