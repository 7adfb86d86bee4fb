"""The scheduler as a state machine: events and `now` in, plans and updates out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from itertools import chain

from common.step import ExecutorInfo, SampledToken, SealedBlock, StepPlan, StepResult
from scheduler_svc.core.adoption import Residency, adopt, ending_of
from scheduler_svc.core.block_manager import BlockManager
from scheduler_svc.core.capacity import most_output
from scheduler_svc.core.drafter import Drafter
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.invariants import check_roster
from scheduler_svc.core.plan_draft import PlanInFlight
from scheduler_svc.core.planner import Planner
from scheduler_svc.core.readings import Snapshot, Totals, snapshot_of
from scheduler_svc.core.request import Beginning, FinishReason, NeverFits, Request, SequenceUpdate, WrongResult
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.score_updates import drawn_score, known_scores
from scheduler_svc.core.scoring import Scored
from scheduler_svc.core.search_steps import resident_ids
from scheduler_svc.core.search_updates import advance, last_update
from scheduler_svc.core.sequence import Sequence, Status
from scheduler_svc.core.view import view_of


class Scheduler:
    """Decides, step by step, which sequence computes how many tokens in which blocks.

    `add`, `cancel`, `stop`, `expire` and `apply` are events; `schedule` makes the next plan. Up to `window` plans are
    in flight: a plan may count on tokens that the plans before it draw, without knowing them (the executor does). With
    drafts of up to `speculative_tokens` (0: none) it is one plan, as these go on from tokens that are known.

    `info` is the capacity, as the executor reported it; `policy` says who boards, who computes how much and who gives
    way; every plan carries the session's `term`.
    """

    def __init__(
        self, info: ExecutorInfo, policy: GuardedPolicy, *, term: int = 0, window: int = 2, speculative_tokens: int = 0
    ) -> None:
        self.policy = policy
        self.totals = Totals()
        self._window = 1 if speculative_tokens else window
        self._drafter = Drafter(speculative_tokens)
        self._step = 0
        self._roster = Roster()
        self._connect(info, term)

    def _connect(self, info: ExecutorInfo, term: int) -> None:
        self._info, self._term = info, term
        self._blocks = BlockManager(info.num_blocks, info.block_size, info.epoch)
        self._planner = Planner(info, self._roster, self._blocks)
        self._in_flight: deque[PlanInFlight] = deque()
        self._finished_ids: list[int] = []
        self._sealed: list[SealedBlock] = []

    @property
    def num_in_flight(self) -> int:
        """Plans whose results are missing."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """Whether a sequence is live or a result missing."""
        return len(self._roster) > 0 or bool(self._in_flight)

    def live(self) -> list[Sequence]:
        """The live sequences, eldest first."""
        return self._roster.live()

    def add(self, request: Request, output: Iterable[int] = (), beginning: Beginning | None = None) -> None:
        """Queue a request, with what it has generated elsewhere and how: then `resume` has to follow.

        Raises `NeverFits` where no token could follow its prompt.
        """
        room = most_output(self._info, request)
        if room < 1:
            raise NeverFits(request, room)
        sequence = Sequence(request, min(room, request.max_tokens or room), output, beginning)
        sequence.show(view_of(sequence, self._blocks))
        self._roster.add(sequence)
        self.totals.accepted += 1

    def cancel(self, sequence_id: int, now: float) -> list[SequenceUpdate]:
        """End a sequence on request. Nothing happens where it has ended already."""
        return self._end_one(sequence_id, FinishReason.CANCELLED, now)

    def stop(self, sequence_id: int, num_output_tokens: int, now: float) -> list[SequenceUpdate]:
        """End a sequence whose text has stopped, with the first `num_output_tokens` of its tokens."""
        if (sequence := self._roster.get(sequence_id)) is None:
            return []
        surplus = sequence.num_output_tokens - num_output_tokens
        self.totals.generated_tokens -= surplus
        return [self._end(sequence, FinishReason.STOP, now, surplus=surplus)]

    def expire(self, now: float) -> list[SequenceUpdate]:
        """End the sequences whose time limit has passed, and those that the policy sheds."""
        late = self._roster.overdue(now)
        if self.policy.sheds and self._roster.waiting:
            waiting = tuple(sequence.view for sequence in self._roster.waiting)
            shed = {view.sequence_id for view in self.policy.shed(waiting, now)}
            late += [one for one in self._roster.waiting if one.sequence_id in shed and one not in late]
        return [self._end(sequence, FinishReason.DEADLINE, now) for sequence in late]

    def next_deadline(self) -> float | None:
        """When the next time limit passes."""
        return self._roster.next_deadline()

    def abandon(self, error: str, now: float) -> list[SequenceUpdate]:
        """End every sequence with an error."""
        return [self._end(sequence, FinishReason.ERROR, now, error=error) for sequence in self._roster.live()]

    def resume(self, info: ExecutorInfo, term: int, held: Residency, now: float) -> list[SequenceUpdate]:
        """Go on with an executor that holds `held`: who is resident runs on, with nothing computed again.

        Whoever else ran waits again, at its old place; its tokens of plans in flight are drawn again, the same. Tokens
        that nobody has heard of are news now; who is resident and not known leaves with the next plan, and who does not
        fit the new capacity ends with an error.
        """
        running = list(self._roster.running)
        self._connect(info, term)
        self._step = held.last_step or self._step
        for sequence in running:
            self._roster.wait_again(sequence)
        for sequence in self._roster.live():
            sequence.forget_plans(now)
            sequence.show(view_of(sequence, self._blocks))
        adoption = adopt(self._roster, self._blocks, held, now)
        self._finished_ids, self._sealed = adoption.strangers, adoption.sealed
        for sequence in running:
            if not sequence.resident:
                sequence.note_preemption(now)
                self.totals.preemptions += 1
        heard = [
            self._learn(sequence, [SampledToken(sequence.sequence_id, token)], now)
            for sequence, tokens in adoption.drawn
            for token in tokens
        ]
        return [*chain.from_iterable(heard), *self._fit(now)]

    def _fit(self, now: float) -> list[SequenceUpdate]:
        """End who had all its tokens when it came, and who does not fit the capacity any more."""
        updates = []
        for sequence in self._roster.live():
            fits = most_output(self._info, sequence.request)
            if (end := ending_of(sequence, fits)) is not None:
                updates.append(self._end(sequence, end.reason, now, stop_token_id=end.stop_token_id, error=end.error))
            sequence.max_output = min(sequence.max_output, fits)
        return updates

    def schedule(self, now: float) -> StepPlan | None:
        """The next plan, or None where the window is full or nothing can be done before the next result."""
        self.policy.settle()
        if len(self._in_flight) >= self._window:
            return None
        draft = self._planner.fill(self._step + 1, self.policy, now)
        self._drafter.add_to(draft, self._blocks, self._roster)
        if not draft.computing and not draft.preempted and not self._finished_ids:
            return None
        self.totals.count(draft, now)
        self.policy.charge(draft.charges, now)
        self.policy.watch(self._roster.boardable(), draft.boarded, now)
        sealed = [seal for seal in self._sealed + draft.sealed if self._blocks.is_known(seal)]
        plan = draft.plan(self._term, self._finished_ids, sealed)
        self._finished_ids, self._sealed, self._step = [], [], draft.step
        self._in_flight.append(draft.in_flight())
        return plan

    def apply(self, result: StepResult, now: float) -> list[SequenceUpdate]:
        """Take the result of the oldest plan in flight.

        A failed step ends its sequences with an error; the executor is then to be opened anew, and `resume` called.
        Raises `WrongResult` where the result is not that of the plan.
        """
        if not self._in_flight or self._in_flight[0].step != result.step:
            raise WrongResult(f"a result of step {result.step} came where none was expected")
        plan = self._in_flight.popleft()
        self._blocks.release_fenced(plan.step)
        if result.error is not None:
            lost = [sequence for sequence in plan.computing if sequence.status is not Status.ENDED]
            return [self._end(sequence, FinishReason.ERROR, now, error=result.error) for sequence in lost]
        draws = plan.draws(result.sampled)
        self.totals.accepted_draft_tokens += plan.accept(draws) if plan.drafted else 0
        known = known_scores(self._roster, result.known_logprobs)  # they come before what is drawn behind them
        failed = [self._end_one(row.sequence_id, FinishReason.ERROR, now, row.error) for row in result.failed]
        heard = [self._learn(sequence, drawn, now) for sequence, drawn in draws]
        return [*known, *chain.from_iterable(failed + heard)]

    def _learn(self, sequence: Sequence, drawn: ListOf[SampledToken], now: float) -> list[SequenceUpdate]:
        """A token that was pending is known now; of a search, one for each beam."""
        if sequence.status is Status.ENDED:
            return []
        if sequence.search is not None:
            self.totals.generated_tokens += advance(sequence, sequence.search, drawn, now)
            return [self._end(sequence, FinishReason.LENGTH, now)] if sequence.search.is_over else []
        token, logprobs = drawn[0].token_id, drawn[0].logprobs
        scored = None if logprobs is None else drawn_score(sequence, logprobs)
        sequence.learn(token, now)
        self.totals.generated_tokens += 1
        if sequence.has_stopped:
            return [self._end(sequence, FinishReason.STOP, now, news=(token,), scored=scored, stop_token_id=token)]
        if sequence.num_output_tokens >= sequence.max_output:
            return [self._end(sequence, FinishReason.LENGTH, now, news=(token,), scored=scored)]
        self._sealed.extend(self._blocks.seal(sequence))
        index = len(sequence.tokens) - sequence.num_prompt_tokens - 1
        beginning = None if index else sequence.beginning
        return [SequenceUpdate(sequence.sequence_id, index, (token,), None, beginning, scored)]

    def _end_one(self, key: int, reason: FinishReason, now: float, error: str | None = None) -> list[SequenceUpdate]:
        sequence = self._roster.get(key)
        return [] if sequence is None else [self._end(sequence, reason, now, error=error)]

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        *,
        news: tuple[int, ...] = (),
        scored: Scored | None = None,
        surplus: int = 0,
        stop_token_id: int | None = None,
        error: str | None = None,
    ) -> SequenceUpdate:
        """The one way a sequence ends: with `news` as its last tokens, and without the last `surplus` it has."""
        self._roster.remove(sequence)
        if sequence.resident:
            self._finished_ids.extend(resident_ids(sequence))
        self._sealed.extend(self._blocks.give_back(sequence))
        del sequence.tokens[len(sequence.tokens) - surplus :]
        self.totals.finished += 1
        outcome = sequence.outcome(reason, now, stop_token_id=stop_token_id, error=error)
        if sequence.search is not None:
            return last_update(sequence.search, sequence.sequence_id, outcome)
        return SequenceUpdate(sequence.sequence_id, sequence.num_output_tokens - len(news), news, outcome, None, scored)

    def snapshot(self) -> Snapshot:
        """One reading of the state."""
        return snapshot_of(self._roster, self._blocks, self._info.block_size)

    def check_invariants(self) -> None:
        """Raises AssertionError where the state contradicts itself (the design's invariants 1 to 4, 9 and 10)."""
        check_roster(self._roster, self._blocks)
        assert len(self._in_flight) <= self._window, "too many plans are in flight"
        assert self.totals.accepted - self.totals.finished == len(self._roster), "a request has no or two outcomes"
        if not self.has_work:
            assert self._blocks.counts().held == 0, "blocks are held by nobody"
