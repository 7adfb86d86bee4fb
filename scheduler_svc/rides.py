"""The requests of all clients: each goes on with or without a reader, and a reader can come back to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from common.errors import AlreadyExists, Exhausted, NotFound
from scheduler_svc.annotations import Annotations
from scheduler_svc.journal_file import KEEP_ENDED, KEEP_ENDED_S
from scheduler_svc.ride import Key, Ride

MAX_ANNOTATED = 64
"""Of so many answers of them, the log-probabilities are kept too; besides, of those that are being read."""

_RETRY_AFTER_S = 1.0


class Rides:
    """The live requests, at most `limit` sequences of them, and for a while those that have ended.

    `cancel` ends a sequence. Only who may be read again is kept: a request with a grace.
    """

    def __init__(self, limit: int, cancel: Callable[[int], None]) -> None:
        self._limit = limit
        self._cancel = cancel
        self._live: dict[Key, Ride | None] = {}
        self._num_sequences: dict[Key, int] = {}
        self._num_live = 0
        self._ended: dict[Key, tuple[Ride, float]] = {}
        self._alarms: dict[Key, asyncio.TimerHandle] = {}
        self._annotated: list[tuple[Ride, Annotations]] = []

    @contextmanager
    def reserve(self, key: Key, num_sequences: int = 1) -> Iterator[None]:
        """Keep an id, and places, inside the `with` block, for `add`. Raises `AlreadyExists` or `Exhausted`."""
        if key in self._live:
            raise AlreadyExists("request_id: a live request of this tenant has this id; choose another")
        if num_sequences > self._limit:
            raise Exhausted(
                f"this request counts as {num_sequences}, and the server serves {self._limit} at once: ask for less"
            )
        if self._num_live + num_sequences > self._limit:
            raise Exhausted(
                f"the server has {self._num_live} of at most {self._limit} requests, and this one counts as"
                f" {num_sequences}; try again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._take(key, None, num_sequences)
        try:
            yield
        finally:
            if self._live.get(key, self) is None:
                self._drop(key)

    def add(self, ride: Ride) -> None:
        """A request is accepted."""
        self._ended.pop(ride.key, None)
        self._drop(ride.key)
        self._take(ride.key, ride, ride.answers.num_sequences)
        ride.when_ended = self._note_end

    def add_ended(self, ride: Ride) -> None:
        """A request that ended before this process began."""
        self._ended[ride.key] = (ride, asyncio.get_running_loop().time())

    def find(self, key: Key) -> Ride:
        """The request with that key. Raises `NotFound`."""
        ride = self._known(key)
        if ride is None:
            raise NotFound("request_id: no request of this tenant with this id is live, or has ended lately")
        return ride

    def joinable(self, key: Key, digest: Callable[[], bytes]) -> Ride | None:
        """The request that the same one, sent again, continues: nobody reads it, and nobody has read its end.

        One that was lost is not continued: it is to be computed anew. `digest` is not called in vain: it takes long
        where a request is large.
        """
        ride = self._known(key)
        if ride is None or ride.grace_s <= 0 or ride.has_reader or ride.was_read_to_the_end or ride.is_lost:
            return None
        return ride if ride.digest == digest() else None

    def cancel(self, ride: Ride) -> None:
        """End a request, all its samples."""
        for sample in ride.samples:
            self._cancel(sample.sequence_id)

    def _take(self, key: Key, ride: Ride | None, num_sequences: int) -> None:
        self._live[key], self._num_sequences[key] = ride, num_sequences
        self._num_live += num_sequences

    def _drop(self, key: Key) -> None:
        self._live.pop(key, None)
        self._num_live -= self._num_sequences.pop(key, 0)

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
            self._forget_annotations()
            return
        if ride.grace_s > 0:
            loop = asyncio.get_running_loop()
            self._alarms[ride.key] = loop.call_later(ride.grace_s, self.cancel, ride)
        else:
            self.cancel(ride)

    def _note_end(self, ride: Ride) -> None:
        if alarm := self._alarms.pop(ride.key, None):
            alarm.cancel()
        self._drop(ride.key)
        if len(ride.samples) > 1 and ride.is_lost:
            self.cancel(ride)  # where one sample has failed, the others run on
        now = asyncio.get_running_loop().time()
        if ride.grace_s > 0:
            self._ended[ride.key] = (ride, now)
            self._annotated += [(ride, sample.annotations) for sample in ride.samples if sample.annotations is not None]
            self._forget_annotations()
        while self._ended:
            key, (_, ended) = next(iter(self._ended.items()))
            if len(self._ended) <= KEEP_ENDED and now - ended < KEEP_ENDED_S:
                break
            del self._ended[key]

    def _forget_annotations(self) -> None:
        """Those of the oldest answers that are too many, and that nobody reads."""
        unread = (each for each in self._annotated if not each[0].has_reader)
        for each in list(islice(unread, max(0, len(self._annotated) - MAX_ANNOTATED))):
            each[1].forget()
            self._annotated.remove(each)
