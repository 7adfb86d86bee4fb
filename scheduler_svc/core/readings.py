"""What can be read off the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_svc.core.block_manager import BlockManager, PoolCounts
from scheduler_svc.core.plan_draft import PlanDraft
from scheduler_svc.core.roster import Roster


@dataclass(slots=True)
class Totals:
    """What has been counted since the scheduler was made; tokens of prompts count at first admission."""

    accepted: int = 0
    finished: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0

    def count(self, draft: PlanDraft, now: float) -> None:
        """A step is planned; note when those who board for the first time did."""
        self.steps += 1
        self.preemptions += len(draft.preempted)
        self.draft_tokens += sum(len(guess.token_ids) for guess in draft.drafts)
        for sequence in draft.boarded:
            if sequence.first_scheduled_at is None:
                sequence.first_scheduled_at = now
                self.prompt_tokens += sequence.num_prompt_tokens
                self.cached_tokens += sequence.num_cached_tokens or 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of the state; `tokens_held` are the tokens stored in held blocks."""

    running: int
    waiting: int
    pool: PoolCounts
    tokens_held: int


def snapshot_of(roster: Roster, blocks: BlockManager, block_size: int) -> Snapshot:
    """The reading of this moment."""
    pool = blocks.counts()
    unused = sum(blocks.room(sequence) for sequence in roster.running)
    return Snapshot(len(roster.running), len(roster.waiting), pool, pool.held * block_size - unused)
