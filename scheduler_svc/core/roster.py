"""Who waits, who runs, and whose time is running out."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

from scheduler_svc.core.sequence import Sequence, Status

_SLACK = 64
"""Deadlines of ended sequences are swept out when they outnumber the live ones by more than this."""


class Roster:
    """The live sequences, waiting and running, each in order of arrival: who is preempted keeps their place."""

    def __init__(self) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._by_id: dict[int, Sequence] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._num_grouped = 0
        self._num_searches = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, sequence_id: int) -> Sequence | None:
        """The live sequence with that id."""
        return self._by_id.get(sequence_id)

    def live(self) -> list[Sequence]:
        """All live sequences, in the order they were added."""
        return list(self._by_id.values())

    def add(self, sequence: Sequence) -> None:
        """A new sequence waits. Raises ValueError where its id is that of a live one."""
        if sequence.sequence_id in self._by_id:
            raise ValueError(f"sequence {sequence.sequence_id} is live already")
        self._by_id[sequence.sequence_id] = sequence
        insort(self.waiting, sequence, key=_arrival_order)
        self._num_grouped += sequence.request.group is not None
        self._num_searches += sequence.search is not None
        if sequence.deadline is not None:
            heapq.heappush(self._deadlines, (sequence.deadline, sequence.sequence_id))

    def boardable(self) -> list[Sequence]:
        """Who waits and may board: of the samples of a prompt that nobody has computed yet, one.

        There is somebody wherever somebody waits and nobody runs.
        """
        if not self._num_grouped:
            return self.waiting
        running = [one for one in self.running if one.request.group is not None]
        computed = {one.request.group for one in running if one.has_computed_prompt}
        closed = {one.request.group for one in running} - computed
        free = []
        for one in self.waiting:
            group = one.request.group
            if group not in closed:
                free.append(one)
            if group is not None and group not in computed:
                closed.add(group)
        return free

    @property
    def has_searches(self) -> bool:
        """Whether a live sequence is a beam search."""
        return self._num_searches > 0

    def search_seats(self, *, of_all: bool = False) -> int:
        """Seats of running searches, but for one of each that can compute now (`of_all`: with it)."""
        if not self._num_searches:
            return 0
        searches = [one for one in self.running if one.search is not None]
        return sum(one.num_seats - (not of_all and one.num_remaining > 0) for one in searches)

    def board(self, sequence: Sequence) -> None:
        """A waiting sequence runs."""
        _take_out(self.waiting, sequence)
        insort(self.running, sequence, key=_arrival_order)
        sequence.status = Status.RUNNING

    def wait_again(self, sequence: Sequence) -> None:
        """A running sequence waits, at its old place."""
        _take_out(self.running, sequence)
        insort(self.waiting, sequence, key=_arrival_order)
        sequence.status = Status.WAITING

    def remove(self, sequence: Sequence) -> None:
        """A live sequence has ended."""
        _take_out(self.running if sequence.status is Status.RUNNING else self.waiting, sequence)
        del self._by_id[sequence.sequence_id]
        self._num_grouped -= sequence.request.group is not None
        self._num_searches -= sequence.search is not None
        sequence.status = Status.ENDED
        if len(self._deadlines) > 2 * len(self._by_id) + _SLACK:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._by_id]
            heapq.heapify(self._deadlines)

    def next_deadline(self) -> float | None:
        """When the next live sequence runs out of time."""
        while self._deadlines and self._deadlines[0][1] not in self._by_id:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def overdue(self, now: float) -> list[Sequence]:
        """Take out, and return, the live sequences whose deadline has come."""
        late = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            late.append(self._by_id[heapq.heappop(self._deadlines)[1]])
        return late

    def check_invariants(self) -> None:
        """Raises AssertionError unless every live sequence is in exactly one place."""
        listed = [sequence.sequence_id for sequence in (*self.waiting, *self.running)]
        assert sorted(listed) == sorted(self._by_id), "a sequence is lost, or in two places"
        assert all(sequence.status is Status.WAITING for sequence in self.waiting), "who waits is not WAITING"
        assert all(sequence.status is Status.RUNNING for sequence in self.running), "who runs is not RUNNING"


def _arrival_order(sequence: Sequence) -> int:
    return sequence.sequence_id


def _take_out(ordered: list[Sequence], sequence: Sequence) -> None:
    index = bisect_left(ordered, sequence.sequence_id, key=_arrival_order)
    assert ordered[index] is sequence
    del ordered[index]
