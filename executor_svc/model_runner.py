"""From the rows of a step to the tokens they draw: the forward pass, what changes its logits, the draw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat

import numpy as np
import torch

from common.logprobs import KnownLogprobs, TokenLogprobs
from common.metrics import ExecutorMetrics
from common.step import BlockCopy, SampledToken
from executor_svc.adjustments import build_adjustments
from executor_svc.batch import build_batch, build_draws, build_masks, take_drawn, to_device
from executor_svc.kv_pool import KvPool
from executor_svc.models.registry import GreedyModel, Model
from executor_svc.scores import asking_rows, score_drawn, score_known, split_logits
from executor_svc.sequence import Row
from kernels.adjust_logits import adjust_logits
from kernels.allow_tokens import allow_tokens
from kernels.backend import Kernels

Drawn = tuple[tuple[SampledToken, ...], tuple[KnownLogprobs, ...]]


class ModelRunner:
    """A model over a pool. It knows neither plans nor what is resident."""

    def __init__(self, model: Model, pool: KvPool, kernels: Kernels, metrics: ExecutorMetrics) -> None:
        self.model = model
        self._greedy_model = model if isinstance(model, GreedyModel) else None
        self.pool = pool
        self.kernels = kernels
        self._metrics = metrics

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks, all of them at once."""
        if not copies:
            return
        device = self.pool.pools.device
        sources = to_device([copy.source for copy in copies], np.int64, device)
        destinations = to_device([copy.destination for copy in copies], np.int64, device)
        for tensor in self.pool.tensors:
            self.kernels.copy_blocks(tensor, sources, destinations)

    def compute(self, rows: Sequence[Row]) -> Drawn:
        """The tokens drawn, in the order of the rows that draw, and what known ones score."""
        if not rows:
            return (), ()
        drawing = [row for row in rows if row.draws]
        with self._metrics.forward_seconds.time():
            batch = build_batch(rows, self.pool.block_size, self.pool.pools.device)
            if self._greedy_model is not None and all(row.sequence.is_greedy for row in rows):
                return sampled_tokens(drawing, self._greedy_model.likeliest(batch, self.pool).tolist()), ()
            logits = self.model.forward(batch, self.pool)
        drawn_from, known = split_logits(logits, rows)
        return self._draw(drawn_from, drawing), score_known(logits, known, rows)

    def launch(
        self, rows: Sequence[Row], drawing: Sequence[Row], before: tuple[Sequence[Row], torch.Tensor] | None
    ) -> torch.Tensor:
        """What `drawing`, those of `rows` that draw, draws: int64 [rows that draw], on the device, which may still be
        computing it. Every row is plain. `before` has the rows of the last step and what they drew, where the host does
        not know it.
        """
        device = self.pool.pools.device
        if not rows:
            return torch.empty(0, dtype=torch.int64, device=device)
        batch = build_batch(rows, self.pool.block_size, device)
        if before is not None:
            take_drawn(batch, rows, *before)
        logits = self.model.forward(batch, self.pool)
        return self.kernels.sample_tokens(logits, build_draws(drawing, device))

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
        drawn = self.kernels.sample_tokens(logits, build_draws(rows, logits.device))
        if masks is not None:
            _stop_where_none_is_left(logits, drawn, drawing)
        tokens = drawn.tolist()
        return sampled_tokens(rows, tokens, score_drawn(asking, drawing, tokens))


def sampled_tokens(
    rows: Sequence[Row], token_ids: Sequence[int], scores: Iterable[TokenLogprobs | None] = repeat(None)
) -> tuple[SampledToken, ...]:
    """What `rows` drew, in order, where each drew as often as it does."""
    sampled = tuple(map(SampledToken, (row.sequence.sequence_id for row in _repeated(rows)), token_ids, scores))
    return sampled if len(sampled) == len(rows) else tuple(_valid(rows, iter(sampled)))


def _repeated(rows: Sequence[Row]) -> list[Row]:
    """Each row as often as it draws."""
    return [row for row in rows for _ in range(row.num_drawn)]


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
