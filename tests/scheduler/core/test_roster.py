"""Who waits and who runs, and the deadlines of both."""

from __future__ import annotations

from common.step import Sampling
from scheduler_svc.core.request import Request
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.sequence import Sequence


def make(sequence_id: int, deadline: float | None) -> Sequence:
    return Sequence(Request(sequence_id, (1,), Sampling(), arrival=0.0, deadline=deadline), max_output=1)


def test_deadlines_come_in_order_and_those_of_ended_sequences_never() -> None:
    roster = Roster()
    sequences = [make(1, 9.0), make(2, 5.0), make(3, None), make(4, 7.0)]
    for sequence in sequences:
        roster.add(sequence)
    assert roster.next_deadline() == 5.0
    roster.remove(sequences[1])
    assert roster.next_deadline() == 7.0
    assert roster.overdue(9.0) == [sequences[3], sequences[0]]
    assert roster.next_deadline() is None


def test_deadlines_of_ended_sequences_do_not_pile_up() -> None:
    roster = Roster()
    roster.add(make(1, 1.0))  # the earliest stays, so nothing is swept by being overdue
    for sequence_id in range(2, 1000):
        sequence = make(sequence_id, 3600.0 + sequence_id)
        roster.add(sequence)
        roster.remove(sequence)
    assert len(roster._deadlines) < 70
    assert roster.next_deadline() == 1.0
