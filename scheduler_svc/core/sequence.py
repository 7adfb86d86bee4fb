"""What the scheduler knows about one request: its tokens, its blocks, and how far its plans have come."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from common.step import ScheduledSequence
from scheduler_svc.core.beams import BeamSearch
from scheduler_svc.core.policy import Charge, SequenceView
from scheduler_svc.core.request import Beginning, FinishReason, Outcome, Request
from scheduler_svc.core.scoring import Scoring


class Status(enum.Enum):
    """Where a sequence is. A preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Sequence:
    """One sequence. There are no phases: every step lets `num_scheduled` catch up with `num_planned`.

    Attributes:
        sequence_id: unique, and rising with arrival.
        num_prompt_tokens: tokens of the prompt.
        tokens: the known ones, prompt first.
        num_scheduled: leading tokens whose keys and values are computed, or will be by a plan in flight.
        num_pending: tokens that plans in flight draw: they exist, but are not known yet.
        block_table: block ids, one for each `block_size` scheduled tokens; the last may be partly filled.
        block_hashes: content hashes of the known full blocks, as far as they were asked for.
        num_sealed: leading blocks offered to the prefix cache.
        last_step: number of the last plan that computes something for it; 0 where none has.
        max_output: most tokens it may generate: what was asked for and what fits.
        num_cached_blocks: leading full blocks that the prefix cache had when it was last asked.
        scoring: how far its log-probabilities have come.
        search: its beam search, where it is one. Its own tokens are the prompt then, and once that is computed
            `branches` are the block tables of the beams, with `num_branched` tokens each; `block_table` is empty.
        view: what policies are shown of it.
        decode: its row in a plan that decodes it and gives it no block: always the same one.
        decode_charge: what policies are charged for such a row.
    """

    __slots__ = (
        "block_hashes",
        "block_table",
        "branches",
        "decode",
        "decode_charge",
        "first_scheduled_at",
        "first_token_at",
        "last_step",
        "max_output",
        "num_branched",
        "num_cached_blocks",
        "num_cached_tokens",
        "num_pending",
        "num_preemptions",
        "num_prompt_tokens",
        "num_scheduled",
        "num_sealed",
        "request",
        "resident",
        "scoring",
        "search",
        "sequence_id",
        "status",
        "tokens",
        "view",
        "waiting_since",
    )

    def __init__(
        self, request: Request, max_output: int, output: Iterable[int] = (), beginning: Beginning | None = None
    ) -> None:
        self.request = request
        self.sequence_id = request.sequence_id
        self.num_prompt_tokens = len(request.prompt)
        self.max_output = max_output
        self.tokens = [*request.prompt, *output]
        self.num_scheduled = 0
        self.num_pending = 0
        self.block_table: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_sealed = 0
        self.num_cached_blocks = 0
        self.scoring = Scoring(request.sampling, len(request.prompt))
        self.search = None if request.beams is None else BeamSearch(request.beams, request.stop_token_ids)
        self.branches: list[list[int]] = []
        self.num_branched = 0
        self.view: SequenceView
        self.decode = ScheduledSequence(request.sequence_id, 1)
        self.decode_charge: Charge
        self.last_step = 0
        self.resident = False
        self.status = Status.WAITING
        self.waiting_since = request.arrival
        self.num_cached_tokens: int | None = None
        self.num_preemptions = 0
        self.first_scheduled_at: float | None = None
        self.first_token_at: float | None = None
        if beginning is not None:
            self.num_cached_tokens = beginning.num_cached_tokens
            self.first_scheduled_at = request.arrival + beginning.queued_s
            self.first_token_at = request.arrival + beginning.first_token_s

    @property
    def beginning(self) -> Beginning | None:
        """How it came to its first token, while that is the only one it has."""
        if self.num_output_tokens != 1 or self.first_scheduled_at is None or self.first_token_at is None:
            return None
        queued, first = self.first_scheduled_at - self.arrival, self.first_token_at - self.arrival
        return Beginning(queued, first, self.num_cached_tokens or 0)

    @property
    def arrival(self) -> float:
        """When it arrived, in seconds."""
        return self.request.arrival

    @property
    def priority(self) -> int:
        """Higher is served sooner."""
        return self.request.priority

    @property
    def tenant(self) -> str:
        """Who is billed."""
        return self.request.tenant

    @property
    def deadline(self) -> float | None:
        """When its time limit passes, in seconds."""
        return self.request.deadline

    @property
    def num_output_tokens(self) -> int:
        """Known tokens it has generated."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def has_computed_prompt(self) -> bool:
        """Whether its whole prompt is computed, or will be by a plan in flight."""
        return self.num_scheduled >= len(self.request.prompt)

    @property
    def num_planned(self) -> int:
        """Tokens it has, those still to be learned from plans in flight included."""
        return len(self.tokens) + self.num_pending

    @property
    def num_remaining(self) -> int:
        """Tokens the next plans have to compute (a search: of each beam): 0 while only results are missing."""
        if self.search is not None:
            return int(self.num_pending == 0) if self.has_computed_prompt else len(self.tokens) - self.num_scheduled
        planned = len(self.tokens) + self.num_pending
        if planned - self.num_prompt_tokens >= self.max_output:
            return 0
        return planned - self.num_scheduled

    @property
    def num_seats(self) -> int:
        """Rows that a step may need for it."""
        return 1 if self.search is None else self.search.params.width

    @property
    def num_stored(self) -> int:
        """Leading known tokens whose keys and values its blocks hold, once the plans in flight are done."""
        return min(self.num_scheduled, len(self.tokens))

    @property
    def num_reusable(self) -> int:
        """Most leading tokens that a prefix hit may spare: never the last, nor any that is to be scored."""
        return min(len(self.tokens) - 1, self.scoring.num_skippable)

    @property
    def has_stopped(self) -> bool:
        """Whether its last token ends it."""
        request = self.request
        return self.tokens[-1] in request.stop_token_ids and self.num_output_tokens > request.sampling.min_tokens

    def show(self, view: SequenceView) -> None:
        """Policies are shown `view` of it from now on."""
        self.view = view
        self.decode_charge = Charge(view, 1, 1)

    def forget_blocks(self) -> None:
        """Start over: nothing is computed."""
        self.block_table = []
        self.num_scheduled = 0
        self.num_sealed = 0
        self.branches = []
        if self.search is not None and not self.search.is_over:
            self.search.start_over()

    def forget_plans(self, now: float) -> None:
        """Start over: the plans in flight will have no results. Tokens it has from elsewhere came by `now`."""
        if self.num_output_tokens and self.first_token_at is None:
            self.first_scheduled_at = self.first_token_at = now
        self.forget_blocks()
        self.block_hashes = []
        self.num_pending = 0
        self.last_step = 0
        self.resident = False

    def note_reuse(self, num_tokens: int) -> None:
        """It boards with so many tokens that need no computing. The first time counts, and of the prompt what a hit
        can be: all but one token.
        """
        if self.num_cached_tokens is None:
            self.num_cached_tokens = min(num_tokens, self.num_prompt_tokens - 1)

    def learn(self, token_id: int, now: float) -> None:
        """A token that was pending is known."""
        self.num_pending -= 1
        self.tokens.append(token_id)
        self.note_token(now)

    def note_token(self, now: float) -> None:
        """It has got a token; a search, one for each beam."""
        if self.first_token_at is None:
            self.first_token_at = now

    def note_preemption(self, now: float) -> None:
        """It has lost its blocks, and waits again."""
        self.waiting_since = now
        self.num_preemptions += 1

    def outcome(
        self, reason: FinishReason, now: float, *, stop_token_id: int | None = None, error: str | None = None
    ) -> Outcome:
        """The outcome, were it to end now."""
        return Outcome(
            reason=reason,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self.num_cached_tokens or 0,
            num_preemptions=self.num_preemptions,
            queued_s=_since(self.arrival, self.first_scheduled_at),
            first_token_s=_since(self.arrival, self.first_token_at),
            total_s=now - self.arrival,
            stop_token_id=stop_token_id,
            error=error,
            score=self.scoring.mean(self.num_output_tokens) if self.request.is_ranked else None,
        )


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else moment - start
