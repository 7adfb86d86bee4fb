"""Decodes as CUDA graphs: a step that only decodes is one launch, not hundreds.

A graph replays the same kernels over the same tensors. There is one for each of some numbers of sequences; a step
takes the next larger one, and the rows it does not need are no sequence's: they store nothing and nothing is read
from them. A step with a prefill chunk, or with more or longer sequences than a graph has room for, runs without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
import torch

from executor_svc.batch import Batch
from executor_svc.kv_pool import KvPool
from executor_svc.models.llama import AttentionPlans, Llama
from executor_svc.models.spec import ModelSpec
from kernels.paged_attention import PagedBatch
from kernels.triton.attention_plan import fits, fixed_plan, load_plan

_MAX_SEQUENCES = 256
_SPARE_ITEMS = 256
_ITEMS_EACH = 8
"""Items of attention that a graph has room for: so many, and so many for each sequence."""
_PROGRAMS = 16

Compute = Callable[[], torch.Tensor]
Capture = Callable[[Compute], tuple[torch.Tensor, Callable[[], None]]]
"""Makes a computation repeatable: its output, and what computes it again into the same place."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured forward pass: its inputs, its plans, its logits, and what runs it."""

    batch: Batch
    plans: AttentionPlans
    logits: torch.Tensor
    replay: Callable[[], None]


class GraphedModel:
    """`executor_svc.models.registry.Model` over a model of Triton's kernels and one pool."""

    def __init__(self, model: Llama, pool: KvPool, max_sequences: int, max_model_len: int, capture: Capture) -> None:
        self.spec: ModelSpec = model.spec
        self.weights_bytes = model.weights_bytes
        self._model = model
        self._pool = pool
        self._graphs: list[Graph] = []
        width = -(-max_model_len // pool.block_size)
        sizes = graph_sizes(min(max_sequences, _MAX_SEQUENCES))
        plans = self._model.plan_attention(_empty_batch(1, width, pool.pools.device), pool.block_size)
        like = next(iter(plans.values()))
        for done, size in enumerate(reversed(sizes), start=1):  # the largest first: the others fit into its memory
            fixed: dict[int | None, Any] = {}
            for window in plans:  # layers are computed one after the other: all can store their splits in one place
                fixed[window] = like = fixed_plan(
                    like,
                    window=window,
                    sequences=size,
                    items=_SPARE_ITEMS + _ITEMS_EACH * size,
                    table_width=width,
                    programs=max(_PROGRAMS, 2 * size),
                )
            self._graphs.insert(0, self._captured(size, width, fixed, capture))
            log.info("decode graph captured", sequences=size, done=done, of=len(sizes))

    def forward(self, batch: Batch, pool: KvPool) -> torch.Tensor:
        """As `Model.forward`. The logits hold until the next call."""
        plans = self._model.plan_attention(batch, pool.block_size)
        rows = len(batch.token_ids)
        if rows == len(batch.drawing_rows) == len(batch.paged.lengths):
            for graph in self._graphs:
                if all(fits(plan, graph.plans[window]) for window, plan in plans.items()):
                    return self._replayed(graph, batch, plans)[:rows]
        return self._model.compute(batch, plans, pool)

    def _captured(self, size: int, width: int, plans: AttentionPlans, capture: Capture) -> Graph:
        batch = _empty_batch(size, width, self._pool.pools.device)
        with torch.inference_mode():
            logits, replay = capture(lambda: self._model.compute(batch, plans, self._pool))
        return Graph(batch, plans, logits, replay)

    def _replayed(self, graph: Graph, batch: Batch, plans: AttentionPlans) -> torch.Tensor:
        rows = len(batch.token_ids)
        graph.batch.slots.fill_(-1)
        for name in ("token_ids", "positions", "slots"):
            getattr(graph.batch, name)[:rows].copy_(getattr(batch, name))
        for window, plan in plans.items():
            load_plan(plan, graph.plans[window])
        graph.replay()
        return graph.logits


def graph_sizes(largest: int) -> Sequence[int]:
    """Numbers of sequences to have graphs for: powers of two to 16, multiples of 16 from there."""
    sizes = [size for size in (1, 2, 4, 8, *range(16, largest, 16)) if size < largest]
    return [*sizes, largest]


def capture_cuda(memory: Any) -> Capture:
    """Capture into CUDA graphs whose intermediate results share `memory`, a handle of torch's."""

    def capture(compute: Compute) -> tuple[torch.Tensor, Callable[[], None]]:
        compute()  # compiles what is not compiled yet, which a capture must not
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            logits = compute()
        return logits, graph.replay

    return capture


def _empty_batch(size: int, width: int, device: torch.device) -> Batch:
    """`size` rows of no sequence."""

    def filled(value: int) -> torch.Tensor:
        return torch.full((size,), value, dtype=torch.int64, device=device)

    return Batch(
        token_ids=filled(0),
        positions=filled(0),
        slots=filled(-1),
        drawing_rows=torch.arange(size, device=device),
        paged=PagedBatch(torch.zeros(size, width, dtype=torch.int64, device=device), [], [0]),
    )
