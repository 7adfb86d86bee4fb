"""The engine: takes a plan in, computes its batch, draws the tokens, keeps what the next plan needs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, repeat
from operator import attrgetter

import numpy as np
import structlog
import torch

from common.logprobs import KnownLogprobs, TokenLogprobs
from common.metrics import ExecutorMetrics
from common.model_identity import ModelIdentity
from common.resident import ResidentPage
from common.step import (
    BlockCopy,
    ExecutorInfo,
    FailedSequence,
    InvalidPlan,
    SampledToken,
    StaleTerm,
    StepPlan,
    StepResult,
)
from executor_svc.adjustments import build_adjustments
from executor_svc.batch import build_batch, build_draws, build_masks, to_device
from executor_svc.constraints import Constraints
from executor_svc.kv_pool import KvPool
from executor_svc.models.registry import GreedyModel, Model
from executor_svc.resident import ResidentTable
from executor_svc.scores import asking_rows, score_drawn, score_known, split_logits
from executor_svc.sequence import HeldSequence, Row
from kernels.adjust_logits import adjust_logits
from kernels.allow_tokens import allow_tokens
from kernels.backend import Kernels

Drawn = tuple[tuple[SampledToken, ...], tuple[KnownLogprobs, ...]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What a plan may ask for: tokens of a sequence, sequences in a step, tokens computed in a step."""

    max_model_len: int
    max_sequences: int
    max_step_tokens: int


class Engine:
    """A `StepExecutor` over a model and a pool. Every call is to come from one and the same thread."""

    def __init__(
        self,
        identity: ModelIdentity,
        model: Model,
        pool: KvPool,
        kernels: Kernels,
        constraints: Constraints,
        limits: EngineLimits,
        metrics: ExecutorMetrics,
    ) -> None:
        self._model = model
        self._greedy_model = model if isinstance(model, GreedyModel) else None
        self._pool = pool
        self._kernels = kernels
        self._constraints = constraints
        self._metrics = metrics
        self._info = ExecutorInfo(
            epoch=os.urandom(16),
            model=identity.name,
            vocab_size=model.spec.vocab_size,
            max_model_len=limits.max_model_len,
            block_size=pool.block_size,
            num_blocks=pool.num_blocks,
            max_sequences=limits.max_sequences,
            max_step_tokens=limits.max_step_tokens,
            tokenizer_digest=identity.tokenizer_digest,
        )
        self._resident = ResidentTable(self._info)
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
        if not resume:
            self._metrics.pool_clears.inc(not self._resident.is_empty)
            self._resident.clear()
            self._last_step = 0
        self._term += 1
        self._session_has_begun = False
        return self._term

    def step(self, plan: StepPlan) -> StepResult:
        """As `StepExecutor.step`."""
        started = time.perf_counter_ns()
        idle = started - self._idle_since
        self._check_order(plan)
        rows = self._resident.apply(plan)
        self._last_step, self._session_has_begun = plan.step, True
        self._constrain(rows[: len(plan.new_sequences)])
        sampled: tuple[SampledToken, ...] = ()
        failed: tuple[FailedSequence, ...] = ()
        known_logprobs: tuple[KnownLogprobs, ...] = ()
        error = None
        try:
            sampled, known_logprobs = self._compute(plan.copies, rows)
            of_rows = groupby(sampled, key=attrgetter("sequence_id"))
            drawn = [[token.token_id for token in tokens] for _, tokens in of_rows]
            self._resident.commit(rows, drawn, plan.sealed)
            failed = tuple(_advance([row.sequence for row in rows if row.draws], drawn))
        except Exception as failure:  # whatever it is, it must not end the process: others wait for their steps
            self._resident.drop(rows)
            sampled, failed, known_logprobs = (), (), ()
            error = type(failure).__name__  # its message could quote a request
            log.error("step failed", step=plan.step, error=error)
        self._idle_since = time.perf_counter_ns()
        return StepResult(plan.step, sampled, self._idle_since - started, idle, error, known_logprobs, failed)

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        """As `StepExecutor.resident`."""
        return self._resident.pages(self._last_step, page_size)

    def _check_order(self, plan: StepPlan) -> None:
        if plan.term < self._term:
            raise StaleTerm(f"term {plan.term} has ended: a newer scheduler holds term {self._term}")
        if plan.term > self._term:
            raise InvalidPlan(f"term {plan.term} was never granted, the last one is {self._term}")
        expected = self._last_step + 1
        if plan.step < expected or (self._session_has_begun and plan.step > expected):
            raise InvalidPlan(f"step {plan.step} cannot follow step {self._last_step}")

    def _constrain(self, new: Sequence[Row]) -> None:
        """Begin to follow the grammars of sequences that have just come."""
        for sequence in (row.sequence for row in new):
            if (grammar := sequence.sampling.grammar) is not None:
                sequence.constraint = self._constraints.begin(grammar, sequence.tokens[sequence.num_prompt_tokens :])

    def _compute(self, copies: Sequence[BlockCopy], rows: list[Row]) -> Drawn:
        """The tokens drawn, in the order of the rows that draw, and what known ones score."""
        with torch.inference_mode():
            device = self._pool.pools.device
            if copies:
                sources = to_device([copy.source for copy in copies], np.int64, device)
                destinations = to_device([copy.destination for copy in copies], np.int64, device)
                for tensor in self._pool.tensors:
                    self._kernels.copy_blocks(tensor, sources, destinations)
            if not rows:
                return (), ()
            drawing = [row for row in rows if row.draws]
            with self._metrics.forward_seconds.time():
                batch = build_batch(rows, self._pool.block_size, device)
                if self._greedy_model is not None and all(row.sequence.is_greedy for row in rows):
                    return _sampled(drawing, self._greedy_model.likeliest(batch, self._pool).tolist()), ()
                logits = self._model.forward(batch, self._pool)
            drawn_from, known = split_logits(logits, rows)
            return self._draw(drawn_from, drawing), score_known(logits, known, rows)

    def _draw(self, logits: torch.Tensor, rows: list[Row]) -> tuple[SampledToken, ...]:
        if not rows:
            return ()
        drawing = _repeated(rows)
        asking = asking_rows(logits, drawing)
        adjustments = build_adjustments(drawing, logits.device)
        if adjustments is not None:
            adjust_logits(logits, adjustments)
        if (masks := build_masks(drawing, logits.device)) is not None:
            allow_tokens(logits, *masks)
        drawn = self._kernels.sample_tokens(logits, build_draws(rows, logits.device))
        if masks is not None:
            _stop_where_none_is_left(logits, drawn, drawing)
        tokens = drawn.tolist()
        return _sampled(rows, tokens, score_drawn(asking, drawing, tokens))


def _repeated(rows: Sequence[Row]) -> list[Row]:
    """Each row as often as it draws."""
    return [row for row in rows for _ in range(row.num_drawn)]


def _sampled(
    rows: Sequence[Row], token_ids: Sequence[int], scores: Iterable[TokenLogprobs | None] = repeat(None)
) -> tuple[SampledToken, ...]:
    """What `rows` drew, in order, where each drew as often as it does."""
    sampled = tuple(map(SampledToken, (row.sequence.sequence_id for row in _repeated(rows)), token_ids, scores))
    return sampled if len(sampled) == len(rows) else tuple(_valid(rows, iter(sampled)))


def _stop_where_none_is_left(logits: torch.Tensor, drawn: torch.Tensor, rows: Sequence[Row]) -> None:
    """A row that grammar and bans together leave no token has drawn an impossible one: its answer ends there."""
    possible = (logits.gather(1, drawn.unsqueeze(1)).squeeze(1) > -torch.inf).tolist()
    for row, is_possible in zip(rows, possible, strict=True):
        if row.sequence.constraint is not None and not is_possible:
            row.sequence.constraint.stop()


def _valid(rows: Sequence[Row], sampled: Iterator[SampledToken]) -> Iterator[SampledToken]:
    """What `rows` drew, without what lies behind a guess that was wrong."""
    for row in rows:
        part = list(islice(sampled, row.num_drawn))
        yield from part[: row.num_valid([token.token_id for token in part])]


def _advance(drawing: Sequence[HeldSequence], drawn: Sequence[Sequence[int]]) -> Iterator[FailedSequence]:
    """Tell the constraints what was drawn, one token as they have no draft; gives the sequences that cannot go on."""
    for sequence, tokens in zip(drawing, drawn, strict=True):
        if sequence.constraint is not None and (error := sequence.constraint.advance(tokens[0])) is not None:
            yield FailedSequence(sequence.sequence_id, error)
