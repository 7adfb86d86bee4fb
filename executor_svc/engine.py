"""The engine: takes a plan in, has its batch computed, keeps what the next plan needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter

import structlog
import torch

from common.metrics import ExecutorMetrics
from common.model_identity import ModelIdentity
from common.resident import ResidentPage
from common.step import ExecutorInfo, FailedSequence, InvalidPlan, StaleTerm, StepPlan, StepResult
from executor_svc.constraints import Constraints
from executor_svc.model_runner import ModelRunner, sampled_tokens
from executor_svc.pending import DeviceTime, PendingStep, Transfer
from executor_svc.resident import ResidentTable
from executor_svc.sequence import UNKNOWN_TOKEN, HeldSequence, Row

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What a plan may ask for: tokens of a sequence, sequences in a step, tokens computed in a step."""

    max_model_len: int
    max_sequences: int
    max_step_tokens: int


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step that has begun at `at_ns`; `idle_ns` nanoseconds before it, there was no work."""

    plan: StepPlan
    rows: list[Row]
    at_ns: int
    idle_ns: int


class Engine:
    """A `PipelinedExecutor`. Every call is to come from one and the same thread.

    Where it `pipelines`, which takes a device that computes by itself, a step begins while the one before it is still
    computed: the device takes that one's tokens from its own memory. Only steps whose rows are all plain do so, as the
    others need the host to have the tokens.
    """

    def __init__(
        self,
        identity: ModelIdentity,
        runner: ModelRunner,
        constraints: Constraints,
        limits: EngineLimits,
        metrics: ExecutorMetrics,
        *,
        pipelines: bool,
    ) -> None:
        self.runner = runner
        self._constraints = constraints
        self._metrics = metrics
        self._info = ExecutorInfo(
            epoch=os.urandom(16),
            model=identity.name,
            vocab_size=runner.model.spec.vocab_size,
            max_model_len=limits.max_model_len,
            block_size=runner.pool.block_size,
            num_blocks=runner.pool.num_blocks,
            max_sequences=limits.max_sequences,
            max_step_tokens=limits.max_step_tokens,
            tokenizer_digest=identity.tokenizer_digest,
        )
        self._resident = ResidentTable(self._info)
        self._pipelines = pipelines
        self._pending: PendingStep | None = None
        self._term = 0
        self._last_step = 0
        self._session_has_begun = False
        self._idle_since = time.perf_counter_ns()

    def describe(self) -> ExecutorInfo:
        """As `StepExecutor.describe`."""
        return self._info

    def open(self, epoch: bytes, resume: bool) -> int:
        """As `StepExecutor.open`."""
        if epoch != self._info.epoch:
            raise StaleTerm("the executor was started anew: its epoch is another one")
        self._end_pending()
        if not resume:
            self._metrics.pool_clears.inc(not self._resident.is_empty)
            self._resident.clear()
            self._last_step = 0
        self._term += 1
        self._session_has_begun = False
        return self._term

    def step(self, plan: StepPlan) -> StepResult:
        """As `StepExecutor.step`."""
        begun = self.begin(plan)
        return begun if isinstance(begun, StepResult) else begun.result()

    def begin(self, plan: StepPlan) -> StepResult | PendingStep:
        """As `PipelinedExecutor.begin`; two steps are pending at most."""
        at_ns = time.perf_counter_ns()
        self._check_order(plan)
        is_pipelined = self._pipelines and self._resident.is_plain(plan)
        before = self._still_pending()
        idle_ns = at_ns - self._idle_since if before is None else 0
        if before is not None and is_pipelined:
            before.end_before()
        elif before is not None:
            before.result()
        rows = self._resident.apply(plan)
        self._last_step, self._session_has_begun = plan.step, True
        begun = _Begun(plan, rows, at_ns, idle_ns)
        return self._launch(begun, before) if is_pipelined else self._complete(begun)

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        """As `StepExecutor.resident`."""
        self._end_pending()
        return self._resident.pages(self._last_step, page_size)

    def _check_order(self, plan: StepPlan) -> None:
        if plan.term < self._term:
            raise StaleTerm(f"term {plan.term} has ended: a newer scheduler holds term {self._term}")
        if plan.term > self._term:
            raise InvalidPlan(f"term {plan.term} was never granted, the last one is {self._term}")
        expected = self._last_step + 1
        if plan.step < expected or (self._session_has_begun and plan.step > expected):
            raise InvalidPlan(f"step {plan.step} cannot follow step {self._last_step}")

    def _still_pending(self) -> PendingStep | None:
        """The last step, if its tokens are not known."""
        return None if self._pending is None or self._pending.known.done() else self._pending

    def _end_pending(self) -> None:
        """Wait until every token drawn is known."""
        if (last := self._still_pending()) is not None:
            last.result()

    def _complete(self, begun: _Begun) -> StepResult:
        """Compute a step, and wait for it."""
        plan, rows = begun.plan, begun.rows
        self._constrain(rows[: len(plan.new_sequences)])
        try:
            with torch.inference_mode():
                self.runner.copy_blocks(plan.copies)
                sampled, known_logprobs = self.runner.compute(rows)
            of_rows = groupby(sampled, key=attrgetter("sequence_id"))
            drawn = [[token.token_id for token in tokens] for _, tokens in of_rows]
            self._resident.commit(rows, drawn, plan.sealed)
            failed = tuple(_advance([row.sequence for row in rows if row.draws], drawn))
        except Exception as failure:  # whatever it is, it must not end the process: others wait for their steps
            self._resident.drop(rows)
            return self._failed(begun, _reason(plan, failure))
        return StepResult(plan.step, sampled, self._spent(begun), begun.idle_ns, None, known_logprobs, failed)

    def _launch(self, begun: _Begun, before: PendingStep | None) -> StepResult | PendingStep:
        """Begin a step whose rows are all plain."""
        plan, rows = begun.plan, begun.rows
        drawing = [row for row in rows if row.draws]
        try:
            started = DeviceTime(self.runner.pool.pools.device)
            with torch.inference_mode():
                self.runner.copy_blocks(plan.copies)
                last = None if before is None else (before.rows, before.transfer.tokens)
                transfer = Transfer(self.runner.launch(rows, drawing, last))
            self._resident.commit(rows, [(UNKNOWN_TOKEN,)] * len(drawing), plan.sealed)
        except Exception as failure:  # as in `_complete`
            self._resident.drop(rows)
            return self._failed(begun, _reason(plan, failure))
        idle = partial(started.ns_since, before.transfer.arrived) if before is not None else lambda: begun.idle_ns
        self._pending = PendingStep(drawing, transfer, before, partial(self._learn, begun, drawing, transfer, idle))
        return self._pending

    def _learn(
        self,
        begun: _Begun,
        drawing: Sequence[Row],
        transfer: Transfer,
        idle: Callable[[], int],
        error: str | None,
    ) -> StepResult:
        """End a step that was launched: its sequences get the tokens that they have drawn. `idle` tells for how many
        nanoseconds before it the device had nothing to do."""
        try:
            token_ids = [] if error is not None else transfer.token_ids()
        except Exception as failure:
            error = _reason(begun.plan, failure)
        if error is not None:  # of the device: whatever the pool holds by now, nobody can tell
            self._resident.clear()
            return self._failed(begun, error)
        for row, token_id in zip(drawing, token_ids, strict=True):
            row.sequence.tokens[row.end] = token_id
        spent = self._spent(begun)
        if begun.rows:
            self._metrics.forward_seconds.observe(spent / 1e9)
        return StepResult(begun.plan.step, sampled_tokens(drawing, token_ids), spent, idle())

    def _failed(self, begun: _Begun, reason: str) -> StepResult:
        return StepResult(begun.plan.step, (), self._spent(begun), begun.idle_ns, reason)

    def _spent(self, begun: _Begun) -> int:
        """Nanoseconds of a step that ends now; while it waited for the one before, they were that one's."""
        started, self._idle_since = max(begun.at_ns, self._idle_since), time.perf_counter_ns()
        return self._idle_since - started

    def _constrain(self, new: Sequence[Row]) -> None:
        """Begin to follow the grammars of sequences that have just come."""
        for sequence in (row.sequence for row in new):
            if (grammar := sequence.sampling.grammar) is not None:
                sequence.constraint = self._constraints.begin(grammar, sequence.tokens[sequence.num_prompt_tokens :])


def _advance(drawing: Sequence[HeldSequence], drawn: Sequence[Sequence[int]]) -> Iterator[FailedSequence]:
    """Tell the constraints what was drawn, one token as they have no draft; gives the sequences that cannot go on."""
    for sequence, tokens in zip(drawing, drawn, strict=True):
        if sequence.constraint is not None and (error := sequence.constraint.advance(tokens[0])) is not None:
            yield FailedSequence(sequence.sequence_id, error)


def _reason(plan: StepPlan, failure: Exception) -> str:
    """The name of what a step failed with, which is logged: its message could quote a request."""
    name = type(failure).__name__
    log.error("step failed", step=plan.step, error=name)
    return name
