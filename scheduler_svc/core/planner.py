"""Who computes how many tokens in the next step, and in which blocks."""

from __future__ import annotations

from common.step import ExecutorInfo, NewSequence, ScheduledSequence
from scheduler_svc.core.block_manager import BlockManager, PrefixHit
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.plan_draft import PlanDraft
from scheduler_svc.core.policy import StepView
from scheduler_svc.core.roster import Roster
from scheduler_svc.core.search_steps import blocks_wanted, can_fork, fork, resident_ids
from scheduler_svc.core.sequence import Sequence


class Planner:
    """Fills one step: room first, then decodes, then prefills that are under way, then who boards.

    There are no phases: who lacks one token is a decode, who lacks more is a prefill, and both share one batch under
    one token budget (chunked prefill: Sarathi-Serve, Agrawal et al. 2024).
    """

    def __init__(self, info: ExecutorInfo, roster: Roster, blocks: BlockManager) -> None:
        self._info = info
        self._roster = roster
        self._blocks = blocks

    def fill(self, step: int, policy: GuardedPolicy, now: float) -> PlanDraft:
        """The draft of plan number `step`."""
        draft = PlanDraft(step, self._info.max_step_tokens, self._info.max_sequences)
        decodes, prefills = self._active()
        if self._may_lack_blocks(decodes, prefills):
            self._make_room(policy, draft, now)
            decodes, prefills = self._active()
        waiting = self._roster.boardable()  # before anything is scheduled: a sample copies what earlier plans compute
        draft.seats -= len(decodes) + len(prefills) + self._roster.search_seats()
        view = self._view(draft, decodes, prefills, len(waiting))
        self._schedule_decodes(decodes, draft)
        tokens = self._prefill_tokens(policy, view, draft, now)
        if prefills and tokens > 0:
            tokens -= self._continue_prefills(prefills, policy, view, tokens, draft, now)
        if tokens > 0 and draft.seats > 0 and waiting:
            self._admit(waiting, policy, view, tokens, draft, now)
        return draft

    def _view(self, draft: PlanDraft, decodes: list[Sequence], prefills: list[Sequence], num_waiting: int) -> StepView:
        return StepView(
            max_tokens=draft.tokens,
            num_decodes=len(decodes),
            num_prefills=len(prefills),
            running=tuple(sequence.view for sequence in self._roster.running),
            num_waiting=num_waiting,
            num_seats=draft.seats,
            num_blocks=self._info.num_blocks,
            block_size=self._info.block_size,
        )

    def _active(self) -> tuple[list[Sequence], list[Sequence]]:
        """Who runs and lacks one token, and who lacks more, each in order of arrival."""
        decodes, prefills = [], []
        for sequence in self._roster.running:
            remaining = sequence.num_remaining
            if remaining == 1:
                decodes.append(sequence)
            elif remaining > 1:
                prefills.append(sequence)
        return decodes, prefills

    def _make_room(self, policy: GuardedPolicy, draft: PlanDraft, now: float) -> None:
        """Preempt until everybody who runs can have the block they need next.

        The eldest is never a victim, so that whatever a policy says, somebody gets to the end.
        """
        survivors = [sequence for sequence in self._roster.running if sequence.num_remaining > 0]
        needed = sum(blocks_wanted(sequence, self._blocks) for sequence in survivors)
        while len(survivors) > 1 and needed > self._blocks.num_available + self._blocks.num_fenced:
            candidates = survivors[1:]
            chosen = policy.victim(tuple(sequence.view for sequence in candidates), now)
            victim = next(sequence for sequence in candidates if sequence.view is chosen)
            needed -= blocks_wanted(victim, self._blocks)
            survivors.remove(victim)
            self._preempt(victim, draft, now)

    def _may_lack_blocks(self, decodes: list[Sequence], prefills: list[Sequence]) -> bool:
        """Whether not everybody who runs is sure to have the blocks they need next."""
        most = len(decodes) + len(prefills) + self._roster.search_seats(of_all=True)
        return most > self._blocks.num_available + self._blocks.num_fenced

    def _preempt(self, sequence: Sequence, draft: PlanDraft, now: float) -> None:
        draft.preempted_ids.extend(resident_ids(sequence))
        draft.sealed.extend(self._blocks.give_back(sequence))
        draft.preempted.append(sequence)
        sequence.resident = False
        sequence.note_preemption(now)
        self._roster.wait_again(sequence)

    def _schedule_decodes(self, decodes: list[Sequence], draft: PlanDraft) -> None:
        """One token for each, or for each beam; where the budget is too small, for those that have waited longest."""
        searches = [sequence for sequence in decodes if can_fork(sequence)] if self._roster.has_searches else []
        for sequence in searches:
            fork(sequence, self._blocks, draft)
        if searches:
            decodes = [sequence for sequence in decodes if sequence not in searches]
        if len(decodes) > draft.tokens:
            decodes = sorted(decodes, key=lambda sequence: sequence.last_step)[: draft.tokens]
        block_size, step = self._info.block_size, draft.step
        scheduled, rows = [], []
        for sequence in decodes:  # the hottest lines of the scheduler: once for every token that is generated
            row = sequence.decode
            num_tokens = sequence.num_scheduled + 1
            if num_tokens > len(sequence.block_table) * block_size:
                if self._blocks.num_available < 1:
                    continue
                row = ScheduledSequence(sequence.sequence_id, 1, self._blocks.grow(sequence, num_tokens))
            sequence.num_scheduled = num_tokens
            sequence.last_step = step
            if sequence.num_pending == 0:  # the token that is stored is known: it may fill a block
                draft.sealed.extend(self._blocks.seal(sequence))
            sequence.num_pending += 1
            scheduled.append(sequence)
            rows.append(row)
        draft.take_decodes(scheduled, rows)

    def _prefill_tokens(self, policy: GuardedPolicy, view: StepView, draft: PlanDraft, now: float) -> int:
        """Tokens for prefill chunks. Where nothing else is computed, a policy cannot refuse them all."""
        allowed = min(policy.token_budget(view, now), draft.tokens)
        return allowed if allowed or draft.computing else draft.tokens

    def _continue_prefills(
        self,
        prefills: list[Sequence],
        policy: GuardedPolicy,
        view: StepView,
        tokens: int,
        draft: PlanDraft,
        now: float,
    ) -> int:
        """Continue prefills in the policy's order; returns the tokens spent."""
        if draft.seats > 0 and view.num_waiting:
            tokens = max(1, tokens - policy.boarding_reserve(view, now))
        by_id = {sequence.sequence_id: sequence for sequence in prefills}
        spent = 0
        for chosen in policy.prefill_order(tuple(sequence.view for sequence in prefills), now):
            if spent >= tokens:
                break
            sequence = by_id[chosen.sequence_id]
            num_tokens = min(sequence.num_remaining, tokens - spent, self._storable(sequence))
            if num_tokens > 0:
                self._schedule(sequence, num_tokens, draft)
            spent += num_tokens
        return spent

    def _storable(self, sequence: Sequence) -> int:
        """Tokens the sequence could store now, in its own blocks and the available ones."""
        return self._blocks.room(sequence) + self._blocks.num_available * self._info.block_size

    def _schedule(self, sequence: Sequence, num_tokens: int, draft: PlanDraft) -> None:
        grown = self._blocks.grow(sequence, sequence.num_scheduled + num_tokens)
        draft.scheduled.append(ScheduledSequence(sequence.sequence_id, num_tokens, grown))
        self._advance(sequence, num_tokens, draft, draft.known_drawing)

    def _admit(
        self,
        boardable: list[Sequence],
        policy: GuardedPolicy,
        view: StepView,
        prefill_tokens: int,
        draft: PlanDraft,
        now: float,
    ) -> None:
        """Board waiting sequences while there are seats, tokens, and blocks for all they have to compute."""
        promised = sum(self._promised(sequence) for sequence in self._roster.running)
        waiting = tuple(sequence.view for sequence in boardable)
        alone = not self._roster.running and not draft.computing
        for chosen in policy.admission_order(waiting, view, now, alone=alone):
            sequence = self._roster.get(chosen.sequence_id)
            assert sequence is not None, "the guard lets only those pass who wait"
            hit = self._boarding_hit(sequence, draft.step, promised)
            if hit is None or sequence.num_seats > draft.seats:
                break
            num_tokens = self._board(sequence, hit, prefill_tokens, draft)
            promised += self._promised(sequence)
            prefill_tokens -= num_tokens
            if draft.seats < 1 or prefill_tokens < 1:
                break

    def _promised(self, sequence: Sequence) -> int:
        """Blocks a running sequence will want soon: for the rest of its prefill, and one to grow into.

        Who boards must leave them alone, or somebody would be preempted at once.
        """
        if sequence.branches:
            return sequence.num_seats
        unallocated = self._blocks.blocks_for(len(sequence.tokens)) - len(sequence.block_table)
        return max(unallocated, 0) + sequence.num_seats

    def _boarding_hit(self, sequence: Sequence, step: int, promised: int) -> PrefixHit | None:
        """The prefix with which the sequence can board now; None where it has to wait."""
        if sequence.num_pending > 0:
            return None  # its last token, drawn by a plan in flight, is not known yet
        available = self._blocks.num_available - promised
        hit = self._blocks.find(sequence, step)
        if self._blocks.cost(sequence, hit) <= available:
            return hit
        # A copy keeps its source from being reused for a moment: in a full pool only whole blocks may fit.
        whole_blocks = PrefixHit(hit.blocks)
        return whole_blocks if self._blocks.cost(sequence, whole_blocks) <= available else None

    def _board(self, sequence: Sequence, hit: PrefixHit, prefill_tokens: int, draft: PlanDraft) -> int:
        """Seat a waiting sequence and start its prefill; returns the tokens spent."""
        self._roster.board(sequence)
        draft.copies.extend(self._blocks.board(sequence, hit, draft.step))
        computed = sequence.num_scheduled
        num_tokens = min(sequence.num_remaining, prefill_tokens)
        self._blocks.grow(sequence, computed + num_tokens)
        draft.new_sequences.append(
            NewSequence(
                sequence_id=sequence.sequence_id,
                token_ids=tuple(sequence.tokens),
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_computed_tokens=computed,
                num_tokens=num_tokens,
                block_ids=tuple(sequence.block_table),
                sampling=sequence.request.sampling,
            )
        )
        draft.boarded.append(sequence)
        sequence.note_reuse(computed)
        sequence.resident = True
        draft.seats -= sequence.num_seats
        self._advance(sequence, num_tokens, draft, draft.new_drawing)
        return num_tokens

    def _advance(self, sequence: Sequence, num_tokens: int, draft: PlanDraft, drawing: list[Sequence]) -> None:
        lacked_prompt = not sequence.has_computed_prompt
        sequence.num_scheduled += num_tokens
        sequence.last_step = draft.step
        draws = sequence.num_scheduled == sequence.num_planned
        draft.take(sequence, num_tokens, int(draws))
        if draws:
            sequence.num_pending += 1
            drawing.append(sequence)
        draft.sealed.extend(self._blocks.seal(sequence))
        if sequence.request.group is not None and lacked_prompt and sequence.has_computed_prompt:
            self._blocks.offer_rest(sequence)
