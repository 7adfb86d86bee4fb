"""A plan in the making, and what is remembered of it until its result is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from itertools import accumulate

from common.step import BlockCopy, Draft, Fork, NewSequence, SampledToken, ScheduledSequence, SealedBlock, StepPlan
from scheduler_svc.core.policy import Charge
from scheduler_svc.core.request import WrongResult
from scheduler_svc.core.sequence import Sequence


@dataclass(slots=True)
class PlanDraft:
    """What a step has so far, and what it has left: `tokens` of its budget and `seats` in its batch.

    `charges` has an entry for every sequence that computes, and another one for guesses at its tokens. `new_drawing`
    and `known_drawing` are those that draw a token, `forked` the searches that go on.
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
    drafts: list[Draft] = field(default_factory=list)

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

    def guess(self, sequence: Sequence, token_ids: tuple[int, ...]) -> None:
        """Spend tokens on a guess at what a sequence of `known_drawing` draws: they are charged like a prompt's."""
        self.tokens -= len(token_ids)
        self.charges.append(Charge(sequence.view, len(token_ids), 0))
        self.drafts.append(Draft(sequence.sequence_id, token_ids))

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
            drafts=tuple(self.drafts),
        )

    def in_flight(self) -> PlanInFlight:
        """What is remembered of it."""
        drafted = {draft.sequence_id: len(draft.token_ids) for draft in self.drafts}
        return PlanInFlight(self.step, self.new_drawing + self.known_drawing, self.forked, self.computing, drafted)


@dataclass(frozen=True, slots=True)
class PlanInFlight:
    """What is remembered of a plan until its result is in: who draws a token, which searches go on, everybody who
    computes, and how many tokens were guessed for whom (by id).
    """

    step: int
    drawing: list[Sequence]
    forked: list[Sequence]
    computing: list[Sequence]
    drafted: dict[int, int]

    def draws(self, sampled: ListOf[SampledToken]) -> list[tuple[Sequence, ListOf[SampledToken]]]:
        """Who drew what of a result: one token, or one for each beam. Who had a draft comes once for each token drawn.

        Raises `WrongResult` where others drew.
        """
        drawing = self._owners(sampled) if self.drafted else self.drawing
        sizes = [1] * len(drawing) + [sequence.num_seats for sequence in self.forked]
        ends = list(accumulate(sizes))
        parts = [sampled[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        draws = list(zip([*drawing, *self.forked], parts, strict=True))
        expected = [one.sequence_id + index for one, part in draws for index in range(len(part))]
        if [token.sequence_id for token in sampled] != expected or len(sampled) != sum(sizes):
            raise WrongResult(f"the result of step {self.step} has tokens of other sequences than its plan")
        return draws

    def accept(self, draws: ListOf[tuple[Sequence, ListOf[SampledToken]]]) -> int:
        """Note the tokens of drafts that were drawn, and so are computed: all that somebody drew but the last. Returns
        how many they are.
        """
        drawn = Counter(one.sequence_id for one, _ in draws)
        accepted = 0
        for sequence in (one for one in self.drawing if one.sequence_id in self.drafted):
            count = drawn[sequence.sequence_id] - 1
            sequence.num_scheduled += count
            sequence.num_pending += count
            accepted += count
        return accepted

    def _owners(self, sampled: ListOf[SampledToken]) -> list[Sequence]:
        """Whose the first tokens of a result are, those before the tokens of searches."""
        drawn = Counter(token.sequence_id for token in sampled)
        most = [(one, 1 + self.drafted.get(one.sequence_id, 0)) for one in self.drawing]
        return [one for one, size in most for _ in range(max(1, min(drawn[one.sequence_id], size)))]
