"""Drives the scheduler core against the fake executor, and checks everything after every operation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from common.step import ExecutorInfo, Sampling, StepPlan, StepResult
from scheduler_svc.core.adoption import Residency
from scheduler_svc.core.beams import BeamParams, BeamSearch, Hypothesis
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.policy import Policy
from scheduler_svc.core.request import Beginning, FinishReason, NeverFits, Outcome, Request, SequenceUpdate
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.sample_seeds import sample_seed
from tests.fakes import INFO, FakeExecutor, Script, hashed_logprobs, reference_output, restarted, slots_of
from tests.scheduler.core.audit import Audit

GREEDY = Sampling(temperature=0.0)
SMALL = replace(INFO, block_size=4, num_blocks=8)


def request(sequence_id: int, prompt: Iterable[int], **options: Any) -> Request:
    """A greedy request that arrives at 0, unless `options` say otherwise."""
    settings: dict[str, Any] = {"sampling": GREEDY, "arrival": 0.0} | options
    return Request(sequence_id=sequence_id, prompt=tuple(prompt), **settings)


def samples(first: Request, count: int) -> list[Request]:
    """`first`, and as many samples of the same prompt behind it as make `count`."""
    group = first.sequence_id if count > 1 else None
    return [
        replace(
            first,
            sequence_id=first.sequence_id + index,
            sampling=replace(first.sampling, seed=sample_seed(first.sampling.seed, index)),
            group=group,
        )
        for index in range(count)
    ]


def search(sequence_id: int, prompt: Iterable[int], beams: BeamParams, **options: Any) -> Request:
    """A beam search: the step reports what its rules need."""
    stops = options.get("stop_token_ids", frozenset())
    sampling = Sampling(temperature=0.0, num_logprobs=beams.width + len(stops))
    return request(sequence_id, prompt, sampling=sampling, beams=beams, **options)


def ids_of(asked: Request) -> range:
    """The ids that a request's sequences have at the executor."""
    width = 1 if asked.beams is None else asked.beams.width
    return range(asked.sequence_id, asked.sequence_id + width)


def reference_search(asked: Request, max_tokens: int, vocab_size: int) -> list[Hypothesis]:
    """REF of a search: its rules over the fake executor's numbers, with no batch, no blocks and no cache."""
    assert asked.beams is not None
    found, num_top = BeamSearch(asked.beams, asked.stop_token_ids), asked.sampling.num_logprobs or 0
    while not found.is_over:
        texts = [slots_of([*asked.prompt, *beam.tokens]) for beam in found.beams]
        found.advance([hashed_logprobs(slots, 0, num_top, vocab_size) for slots in texts], max_tokens)
    return found.told


def guard(policy: Policy | GuardedPolicy) -> GuardedPolicy:
    """The policy as a scheduler takes it."""
    return policy if isinstance(policy, GuardedPolicy) else GuardedPolicy(policy)


class Driver:
    """A scheduler, an executor, and what both have said so far.

    `plans` are those in flight: a plan is executed when its result is delivered. `tokens` and `outcomes` are what the
    owner of a sequence has heard.
    """

    def __init__(
        self,
        info: ExecutorInfo = INFO,
        policy: Policy | GuardedPolicy | None = None,
        window: int = 2,
        script: Script | None = None,
        speculative_tokens: int = 0,
    ) -> None:
        self.executor = FakeExecutor(info, script)
        self.window = 1 if speculative_tokens else window
        self._settings = {"window": window, "speculative_tokens": speculative_tokens}
        self.scheduler = self._scheduler(self.executor.open(info.epoch, False), policy or Policy())
        self.now = 0.0
        self.plans: deque[StepPlan] = deque()
        self._spaces: deque[dict[int, str | None]] = deque()
        self.requests: dict[int, Request] = {}
        self.tokens: dict[int, list[int]] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.others: dict[int, tuple[SequenceUpdate, ...]] = {}
        self.beginnings: dict[int, Beginning] = {}
        self.audit = Audit(info, self.window)
        self._max_output: dict[int, int] = {}
        self._ended_by_us: dict[int, FinishReason] = {}

    @property
    def live(self) -> list[int]:
        """Sequences without an outcome."""
        return [key for key in self.requests if key not in self.outcomes]

    # Operations

    def add(self, new: Request) -> bool:
        """Queue a request; False where it is refused, which must be because it can never fit."""
        room = self._room(new)
        try:
            self.scheduler.add(new)
        except NeverFits:
            assert room < 1
            return False
        assert room >= 1
        self.requests[new.sequence_id] = new
        self.tokens[new.sequence_id] = []
        self._max_output[new.sequence_id] = min(room, new.max_tokens or room)
        self.audit.salts |= dict.fromkeys(ids_of(new), new.cache_salt)
        self.check()
        return True

    def cancel(self, sequence_id: int) -> None:
        """Cancel: without effect a second time, after the end, and for a sequence nobody knows."""
        self._end([sequence_id], FinishReason.CANCELLED)
        self._hear(self.scheduler.cancel(sequence_id, self.now))

    def stop(self, sequence_id: int, keep: int) -> None:
        """End it with its first `keep` tokens, as the frontend does where a stop text was found."""
        self._end([sequence_id], FinishReason.STOP)
        self._hear(self.scheduler.stop(sequence_id, keep, self.now))

    def sleep(self, seconds: float) -> None:
        """Let time pass, and end who is late."""
        self.now += seconds
        late = [key for key in self.live if (end := self.requests[key].deadline) is not None and end <= self.now]
        updates = self.scheduler.expire(self.now)
        shed = [update.sequence_id for update in updates if self.scheduler.policy.sheds]
        self._end([*late, *shed], FinishReason.DEADLINE)
        self._hear(updates)

    def schedule(self) -> StepPlan | None:
        """Make the next plan."""
        plan = self.scheduler.schedule(self.now)
        if plan is not None:
            self._spaces.append(dict(self.audit.space))
            self.audit.on_plan(plan)
            self.plans.append(plan)
            held = self.scheduler.snapshot().pool.held
            assert len(self.audit.held) <= held <= len(self.audit.held | self.audit.fenced), "held by nobody"
        self.check()
        return plan

    def deliver(self) -> StepResult | None:
        """Execute the oldest plan in flight, and apply its result."""
        if not self.plans:
            return None
        plan = self.plans.popleft()
        self._spaces.popleft()
        result = self.executor.step(plan)
        self.audit.on_result(result)
        if result.error is not None:
            rows = [row.sequence_id for row in (*plan.new_sequences, *plan.scheduled, *plan.forks)]
            self._end(rows, FinishReason.ERROR)
        self._end([failed.sequence_id for failed in result.failed], FinishReason.ERROR)
        self._hear(self.scheduler.apply(result, self.now))
        if result.error is not None:
            self.reconnect()
        return result

    def fail_next(self) -> None:
        """The next step that computes anything fails."""
        reasons = iter(["out of memory"])
        self.executor.fail = lambda plan: next(reasons, None) if plan.num_tokens else None

    def reconnect(self) -> None:
        """The session broke: plans in flight get no results, and the executor drops what it has."""
        self.plans.clear()
        self._spaces.clear()
        info = self.executor.info
        salts = self.audit.salts
        self.audit = Audit(info, self.window, salts=salts)
        self._hear(self.scheduler.resume(info, self.executor.open(info.epoch, False), Residency(), self.now))

    def restart(self, **changes: int) -> None:
        """The executor crashed and is back, perhaps with another capacity."""
        self.executor = restarted(self.executor, **changes)
        for key in self.live:
            self._max_output[key] = min(self._max_output[key], self._room(self.requests[key]))
        self._end([key for key in self.live if len(self.tokens[key]) >= self._max_output[key]], FinishReason.ERROR)
        self.reconnect()

    def hand_over(self, executed: int = 0, unheard: int = 0, *, policy: Policy | None = None) -> None:
        """The scheduler is killed and another one takes over, from what the owners have heard and what is resident.

        The executor has computed `executed` of the plans in flight; of each sequence the last `unheard` tokens are
        not known to the new scheduler, and told once more.
        """
        self._lose_plans(executed)
        term = self.executor.open(self.executor.info.epoch, True)
        self.scheduler = self._scheduler(term, policy or self.scheduler.policy)
        for key in self.live:
            del self.tokens[key][max(0, len(self.tokens[key]) - unheard) :]
            if not self.tokens[key]:
                self.beginnings.pop(key, None)
            asked = self.requests[key]
            self.scheduler.add(asked, self.tokens[key], self.beginnings.get(key))
            if asked.beams is not None:  # it starts over, perhaps in a pool that has grown since it was accepted
                room = self._room(asked)
                self._max_output[key] = min(room, asked.max_tokens or room)
        self._resume(term, self._resident())

    def _scheduler(self, term: int, policy: Policy | GuardedPolicy) -> Scheduler:
        return Scheduler(self.executor.info, guard(policy), term=term, **self._settings)

    def cut(self, executed: int = 0) -> None:
        """The connection breaks and comes back: the same scheduler goes on with what is resident."""
        self._lose_plans(executed)
        term = self.executor.open(self.executor.info.epoch, True)
        self._resume(term, self._resident())

    def _resident(self) -> set[int]:
        """Who can run on where they are: searches start over."""
        return {key for key in self.live if key in self.executor.sequences and self.requests[key].beams is None}

    def _lose_plans(self, executed: int) -> None:
        """The first `executed` plans in flight are computed, and nobody hears of it; the others never are."""
        for _ in range(min(executed, len(self.plans))):
            self._spaces.popleft()
            if self.executor.step(self.plans.popleft()).error is not None:
                break
        if self._spaces:
            self.audit.space = self._spaces[0]
        self.plans.clear()
        self._spaces.clear()

    def _resume(self, term: int, resident: set[int]) -> None:
        """Nobody who is resident is computed again: they run on, or have all they were to get."""
        held = Residency.of(self.executor.resident(2))
        self.audit = self.audit.resumed(held)
        self._hear(self.scheduler.resume(self.executor.info, term, held, self.now))
        assert self.scheduler.snapshot().running == len(resident & set(self.live))

    def step(self) -> bool:
        """Fill the window, then deliver one result; False where there was nothing to do."""
        while self.schedule() is not None:
            pass
        return self.deliver() is not None

    def drain(self) -> None:
        """Run until everybody has an outcome and the executor knows; then all must be as in the beginning."""
        work = sum(len(self.requests[key].prompt) + self._max_output[key] for key in self.live)
        bound = 2 * len(self.live) * work + 10
        steps = 0
        while self.step():
            steps += 1
            assert steps <= bound, f"not done after {bound} steps"
        assert not self.live, "work waits, and nothing is done"
        self.check_idle()
        for sequence_id in self.requests:
            self.check_outcome(sequence_id)

    # Checks

    def check(self) -> None:
        """What must hold at any moment."""
        self.scheduler.check_invariants()
        snapshot = self.scheduler.snapshot()
        pool = snapshot.pool
        assert pool.free + pool.cached + pool.held == self.executor.info.num_blocks
        assert snapshot.running + snapshot.waiting == len(self.live)
        assert 0 <= snapshot.tokens_held <= pool.held * self.executor.info.block_size

    def check_idle(self) -> None:
        """Running = waiting = held = 0, and the executor holds nobody."""
        snapshot = self.scheduler.snapshot()
        assert (snapshot.running, snapshot.waiting, snapshot.pool.held, snapshot.tokens_held) == (0, 0, 0, 0)
        assert not self.scheduler.has_work
        assert not self.executor.sequences

    def check_outcome(self, sequence_id: int) -> None:
        """Its tokens are REF's, it ended where REF ends or where it was ended, and its numbers add up."""
        asked, tokens, outcome = self.requests[sequence_id], self.tokens[sequence_id], self.outcomes[sequence_id]
        if asked.beams is not None:
            self._check_search(asked)
            return
        expected = self.reference(sequence_id)
        assert tuple(tokens) == expected[: len(tokens)], f"sequence {sequence_id} left REF"
        stopped = len(tokens) > asked.sampling.min_tokens and tokens[-1] in asked.stop_token_ids
        reason = self._ended_by_us.get(sequence_id)
        if reason is None:
            assert len(tokens) == len(expected)
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            assert outcome.stop_token_id == (tokens[-1] if stopped else None)
        assert outcome.reason is reason
        assert (outcome.error is not None) == (reason is FinishReason.ERROR)
        assert outcome.num_output_tokens == len(tokens)
        assert outcome.num_prompt_tokens == len(asked.prompt)
        assert 0 <= outcome.num_cached_tokens < len(asked.prompt)
        self._check_times(outcome, bool(tokens))
        if (known := self.beginnings.get(sequence_id)) is not None:
            assert outcome.queued_s == pytest.approx(known.queued_s), "a later scheduler tells another story"
            assert outcome.first_token_s == pytest.approx(known.first_token_s)
            assert outcome.num_cached_tokens == known.num_cached_tokens

    def _check_search(self, asked: Request) -> None:
        """All its answers are those of the search alone, or it has none; each has its place and its outcome."""
        key, others = asked.sequence_id, self.others[asked.sequence_id]
        assert asked.beams is not None
        assert [update.sequence_id for update in others] == list(range(key + 1, key + asked.beams.num_answers))
        answers = [(tuple(self.tokens[key]), self.outcomes[key])]
        answers += [(update.token_ids, update.outcome) for update in others if update.outcome is not None]
        assert len(answers) == asked.beams.num_answers
        if (reason := self._ended_by_us.get(key)) is not None:
            assert {(tokens, outcome.reason) for tokens, outcome in answers} == {((), reason)}
            return
        info = self.executor.info
        expected = reference_search(asked, self._max_output[key], info.vocab_size)
        assert [tokens for tokens, _ in answers] == [answer.tokens for answer in expected]
        assert [outcome.score for _, outcome in answers] == [answer.score for answer in expected]
        assert [outcome.stop_token_id for _, outcome in answers] == [answer.stop_token_id for answer in expected]
        assert [outcome.num_output_tokens for _, outcome in answers] == [len(answer.tokens) for answer in expected]

    @staticmethod
    def _check_times(outcome: Outcome, drew: bool) -> None:
        times = [outcome.queued_s, outcome.first_token_s, outcome.total_s]
        known = [time for time in times if time is not None]
        assert known == sorted(known)
        assert not drew or None not in times

    def reference(self, sequence_id: int) -> tuple[int, ...]:
        """All of REF: up to the first stop token that counts, or as far as it may go."""
        asked = self.requests[sequence_id]
        output = reference_output(
            asked.prompt,
            max(self._max_output[sequence_id], len(self.tokens[sequence_id])),
            asked.sampling,
            self.executor.info.vocab_size,
            self.executor.script,
        )
        least = asked.sampling.min_tokens
        ends = [index for index, token in enumerate(output) if index >= least and token in asked.stop_token_ids]
        return output[: ends[0] + 1] if ends else output

    # Bookkeeping

    def _room(self, asked: Request) -> int:
        """Most tokens that fit behind its prompt."""
        info, length = self.executor.info, len(asked.prompt)
        width = 1 if asked.beams is None else asked.beams.width
        if width > min(info.max_sequences, info.max_step_tokens):
            return 0
        room = 0
        while length + room < info.max_model_len:
            shared = length // info.block_size if asked.beams is not None else 0
            if shared + width * (-(-(length + room + 1) // info.block_size) - shared) > info.num_blocks:
                break
            room += 1
        return room

    def _end(self, sequence_ids: Iterable[int], reason: FinishReason) -> None:
        live = set(self.live)
        self._ended_by_us |= {key: reason for key in sequence_ids if key in live}

    def _hear(self, updates: list[SequenceUpdate]) -> None:
        for update in updates:
            assert update.sequence_id not in self.outcomes, "news after the outcome"
            tokens = self.tokens[update.sequence_id]
            if self._ended_by_us.get(update.sequence_id) is FinishReason.STOP:
                del tokens[update.first_index :]
            assert update.first_index == len(tokens), "a gap or a repeat"
            assert update.token_ids or update.outcome is not None, "an update without news"
            tokens += update.token_ids
            if update.beginning is not None:
                self.beginnings[update.sequence_id] = update.beginning
            if update.outcome is not None:
                self.outcomes[update.sequence_id] = update.outcome
                self.others[update.sequence_id] = update.others
        ended = [key for key in self._ended_by_us if key not in self.outcomes]
        assert not ended, f"{ended} should have ended"
        self.check()


def plans(driver: Driver) -> list[StepPlan]:
    """Run everybody to the end; all the plans it took."""
    made = []
    while True:
        while (plan := driver.schedule()) is not None:
            made.append(plan)
        if driver.deliver() is None:
            driver.drain()
            return made


def table(plan: StepPlan) -> tuple[int, ...]:
    """The block table of the one new sequence of a plan."""
    (row,) = plan.new_sequences
    return row.block_ids
