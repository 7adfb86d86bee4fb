"""The requests of all clients: each goes on with or without a reader, and a reader can come back to it."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from common.errors import Aborted, AlreadyExists, CitybusError, Exhausted, InvalidRequest, NotFound
from scheduler_svc.annotations import Annotations
from scheduler_svc.core.request import FinishReason, Outcome, SequenceUpdate
from scheduler_svc.output_stream import OutputObserver, OutputStream, TextStop

MAX_ENDED = 1_000
"""Most ended requests that are kept for readers that come late."""
KEEP_ENDED_S = 300.0
"""How long they are kept, in seconds."""
MAX_ANNOTATED = 64
"""Of so many of them, the log-probabilities are kept too."""

_RETRY_AFTER_S = 1.0
_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.DEADLINE)

Key = tuple[str, str]
"""(tenant, request id)."""


class StreamMaker(Protocol):
    """Makes the stream of one answer."""

    def __call__(self, observer: OutputObserver, first_index: int) -> OutputStream:
        """A stream that gives tokens from number `first_index` on; `observer` counts what is pushed."""


class _Silent:
    """Counts nothing: what is told again was counted before."""

    def on_tokens(self, count: int) -> None:
        return

    def on_outcome(self, outcome: Outcome) -> None:
        return


class Ride:
    """One accepted request: an `OutputSink` that remembers its tokens, so that a reader can start at any of them.

    `grace_s` is how long it goes on without a reader, `deadline` when its time limit passes; `digest` tells whether a
    request is the same one again. `annotations` is what its readers are told besides, None where it did not ask.
    """

    def __init__(
        self,
        key: Key,
        sequence_id: int,
        digest: bytes,
        grace_s: float,
        deadline: float | None,
        make: StreamMaker,
        meter: OutputObserver,
        annotations: Annotations | None,
    ) -> None:
        self.annotations = annotations
        self.key = key
        self.sequence_id = sequence_id
        self.digest = digest
        self.grace_s = grace_s
        self.deadline = deadline
        self.has_reader = False
        self.was_read_to_the_end = False
        self.stream = make(meter, 0)
        self.when_ended: Callable[[Ride], None] = lambda ride: None
        self._make = make
        self._meter = meter
        self._tokens = array("I")
        self._stop: TextStop | None = None
        self.ending: Outcome | CitybusError | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will come."""
        return self.ending is not None

    @property
    def is_lost(self) -> bool:
        """Whether it has failed or was cancelled."""
        answered = isinstance(self.ending, Outcome) and self.ending.reason in _ANSWERED
        return self.has_ended and not answered

    def push(self, update: SequenceUpdate) -> TextStop | None:
        if self.annotations is not None:
            self.annotations.take(update)
        if not self._stop:
            self._tokens.extend(update.token_ids)
        self._note(self.stream.push(update))
        if update.outcome is not None:
            self._end(update.outcome)
        return self._stop if update.outcome is None else None

    def fail(self, error: CitybusError) -> None:
        self.stream.fail(error)
        self._end(error)

    def restore(self, tokens: Sequence[int]) -> TextStop | None:
        """It has these tokens from a time before this process; a `TextStop` says that they end it."""
        self._tokens.extend(tokens)
        self._note(self.stream.replay(tokens))
        return self._stop

    def end_with(self, ending: Outcome | CitybusError) -> None:
        """Nothing more will come."""
        self.ending = ending
        if self.annotations is not None:
            self.annotations.end()

    def attach(self, next_index: int) -> OutputStream:
        """The stream of a new reader, from token number `next_index` on; the reader before it gets ABORTED.

        Raises `InvalidRequest` where the answer ended before that token.
        """
        if self.has_ended and next_index > len(self._tokens):
            raise InvalidRequest(f"next_index: the answer has {len(self._tokens)} tokens only")
        self.stream.fail(Aborted("another reader has taken this answer over"))
        self.stream = self._make(_Silent() if self.has_ended else self._meter, next_index)
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
        if isinstance(ending, Outcome) and ending.reason is FinishReason.ERROR:
            ending = CitybusError(ending.error or "the request failed")
        self.end_with(ending)
        self.when_ended(self)


class Rides:
    """The live requests, at most `limit`, and for a while those that have ended.

    `cancel` ends a sequence. Only who may be read again is kept: a request with a grace.
    """

    def __init__(self, limit: int, cancel: Callable[[int], None]) -> None:
        self._limit = limit
        self._cancel = cancel
        self._live: dict[Key, Ride | None] = {}
        self._ended: dict[Key, tuple[Ride, float]] = {}
        self._alarms: dict[Key, asyncio.TimerHandle] = {}
        self._annotated: deque[Annotations] = deque()

    @contextmanager
    def reserve(self, key: Key) -> Iterator[None]:
        """Keep an id inside the `with` block, for `add`. Raises `AlreadyExists` or `Exhausted`."""
        if key in self._live:
            raise AlreadyExists("request_id: a live request of this tenant has this id; choose another")
        if len(self._live) >= self._limit:
            raise Exhausted(
                f"the server has {self._limit} requests, as many as it takes at once; try again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._live[key] = None
        try:
            yield
        finally:
            if self._live.get(key, self) is None:
                del self._live[key]

    def add(self, ride: Ride) -> None:
        """A request is accepted."""
        self._ended.pop(ride.key, None)
        self._live[ride.key] = ride
        ride.when_ended = self._note_end

    def add_ended(self, ride: Ride, outcome: Outcome) -> None:
        """A request that ended before this process began."""
        ride.end_with(outcome)
        self._ended[ride.key] = (ride, asyncio.get_running_loop().time())

    def find(self, key: Key) -> Ride:
        """The request with that key. Raises `NotFound`."""
        ride = self._known(key)
        if ride is None:
            raise NotFound("request_id: no request of this tenant with this id is live, or has ended lately")
        return ride

    def joinable(self, key: Key, digest: bytes) -> Ride | None:
        """The request that the same one, sent again, continues: nobody reads it, and nobody has read its end.

        One that was lost is not continued: it is to be computed anew.
        """
        ride = self._known(key)
        if ride is None or ride.digest != digest or ride.has_reader or ride.was_read_to_the_end or ride.is_lost:
            return None
        return ride if ride.grace_s > 0 else None

    def _known(self, key: Key) -> Ride | None:
        return self._live.get(key) or self._ended.get(key, (None, 0.0))[0]

    def board(self, ride: Ride) -> None:
        """A reader has come."""
        if alarm := self._alarms.pop(ride.key, None):
            alarm.cancel()
        ride.has_reader = True

    def leave(self, ride: Ride) -> None:
        """The reader has gone: the request ends once its grace is over."""
        ride.has_reader = False
        if ride.has_ended:
            return
        if ride.grace_s > 0:
            loop = asyncio.get_running_loop()
            self._alarms[ride.key] = loop.call_later(ride.grace_s, self._cancel, ride.sequence_id)
        else:
            self._cancel(ride.sequence_id)

    def _note_end(self, ride: Ride) -> None:
        if alarm := self._alarms.pop(ride.key, None):
            alarm.cancel()
        self._live.pop(ride.key, None)
        now = asyncio.get_running_loop().time()
        if ride.grace_s > 0:
            self._ended[ride.key] = (ride, now)
            self._keep_annotations(ride.annotations)
        while self._ended:
            key, (_, ended) = next(iter(self._ended.items()))
            if len(self._ended) <= MAX_ENDED and now - ended < KEEP_ENDED_S:
                break
            del self._ended[key]

    def _keep_annotations(self, annotations: Annotations | None) -> None:
        if annotations is not None:
            self._annotated.append(annotations)
        if len(self._annotated) > MAX_ANNOTATED:
            self._annotated.popleft().forget()
