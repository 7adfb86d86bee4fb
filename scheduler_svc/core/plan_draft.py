"""A plan in the making, and what is remembered of it until its result is in."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from itertools import accumulate

from common.step import BlockCopy, Fork, NewSequence, SampledToken, ScheduledSequence, SealedBlock, StepPlan
from scheduler_svc.core.policy import Charge
from scheduler_svc.core.request import WrongResult
from scheduler_svc.core.sequence import Sequence


@dataclass(slots=True)
class PlanDraft:
    """What a step has so far, and what it has left: `tokens` of its budget and `seats` in its batch.

    `charges` has an entry for every sequence that computes; `new_drawing` and `known_drawing` are those that draw a
    token, `forked` the searches that go on.
    """

    step: int
    tokens: int
    seats: int
    new_sequences: list[NewSequence] = field(default_factory=list)
    scheduled: list[ScheduledSequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    sealed: list[SealedBlock] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    boarded: list[Sequence] = field(default_factory=list)
    charges: list[Charge] = field(default_factory=list)
    computing: list[Sequence] = field(default_factory=list)
    new_drawing: list[Sequence] = field(default_factory=list)
    known_drawing: list[Sequence] = field(default_factory=list)
    preempted_ids: list[int] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    forked: list[Sequence] = field(default_factory=list)

    def take(self, sequence: Sequence, num_tokens: int, num_drawn: int) -> None:
        """Spend tokens of the budget on a sequence."""
        self.tokens -= num_tokens
        self.charges.append(Charge(sequence.view, num_tokens, num_drawn))
        self.computing.append(sequence)

    def take_decodes(self, sequences: list[Sequence], rows: list[ScheduledSequence]) -> None:
        """Spend one token on each of `sequences`, whose rows these are, and all of which draw one."""
        self.tokens -= len(sequences)
        self.charges += [sequence.decode_charge for sequence in sequences]
        self.computing += sequences
        self.known_drawing += sequences
        self.scheduled += rows

    def plan(self, term: int, finished_ids: Iterable[int], sealed: Iterable[SealedBlock]) -> StepPlan:
        """The plan, with what has ended and what is sealed besides."""
        return StepPlan(
            term=term,
            step=self.step,
            new_sequences=tuple(self.new_sequences),
            scheduled=tuple(self.scheduled),
            finished_ids=tuple(finished_ids),
            preempted_ids=tuple(self.preempted_ids),
            copies=tuple(self.copies),
            sealed=tuple(sealed),
            forks=tuple(self.forks),
        )

    def in_flight(self) -> PlanInFlight:
        """What is remembered of it."""
        return PlanInFlight(self.step, self.new_drawing + self.known_drawing, self.forked, self.computing)


@dataclass(frozen=True, slots=True)
class PlanInFlight:
    """What is remembered of a plan until its result is in: who draws a token, which searches go on, and everybody who
    computes.
    """

    step: int
    drawing: list[Sequence]
    forked: list[Sequence]
    computing: list[Sequence]

    def draws(self, sampled: ListOf[SampledToken]) -> list[tuple[Sequence, ListOf[SampledToken]]]:
        """Who drew what of a result: one token, or one for each beam. Raises `WrongResult` where others drew."""
        sizes = [1] * len(self.drawing) + [sequence.num_seats for sequence in self.forked]
        ends = list(accumulate(sizes))
        parts = [sampled[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        draws = list(zip([*self.drawing, *self.forked], parts, strict=True))
        expected = [one.sequence_id + index for one, part in draws for index in range(len(part))]
        if [token.sequence_id for token in sampled] != expected or len(sampled) != sum(sizes):
            raise WrongResult(f"the result of step {self.step} has tokens of other sequences than its plan")
        return draws
