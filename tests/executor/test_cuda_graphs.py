"""Decodes through fixed tensors give what they give without; the kernels are interpreted, captures are simulated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from executor_svc.batch import Batch
from executor_svc.cuda_graphs import Compute, GraphedModel, graph_sizes
from executor_svc.kv_pool import KvPool
from executor_svc.models.llama import Llama
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.backend import REFERENCE
from kernels.paged_attention import PagedBatch
from kernels.triton.record import TRITON
from tests.checkpoints import write_tiny, write_windowed
from tests.windows import ALTERNATING

CPU = torch.device("cpu")
BLOCK_SIZE = 4


class Captures:
    """Repeats a computation into its first output, and counts."""

    def __init__(self) -> None:
        self.replayed = 0

    def __call__(self, compute: Compute) -> tuple[torch.Tensor, Callable[[], None]]:
        output = compute()

        def replay() -> None:
            self.replayed += 1
            output.copy_(compute())

        return output, replay


def decodes(lengths: list[int], tokens: list[int]) -> Batch:
    """One new token of each sequence; sequence i has blocks 3 * i and on."""
    positions = [length - 1 for length in lengths]
    tables = torch.tensor([[3 * row, 3 * row + 1, 3 * row + 2] for row in range(len(lengths))])
    slots = [(3 * row) * BLOCK_SIZE + position for row, position in enumerate(positions)]
    column = torch.tensor
    return Batch(
        token_ids=column(tokens),
        positions=column(positions),
        slots=column(slots),
        drawing_rows=torch.arange(len(lengths)),
        paged=PagedBatch(tables, lengths, list(range(len(lengths) + 1))),
    )


@pytest.fixture(scope="module", params=["every key", "windows"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    if request.param == "every key":
        return write_tiny(path, num_layers=1, max_model_len=16)
    return write_windowed(path, window=6, layer_types=ALTERNATING, max_model_len=16)


@torch.inference_mode()
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # rows of no sequence are computed from what memory holds
def test_decodes_through_graphs_equal_the_reference(folder: Path) -> None:
    spec = ModelSpec.read(folder)
    pools = [KvPool(spec, num_blocks=12, block_size=BLOCK_SIZE, dtype=torch.float32, device=CPU) for _ in "ab"]
    for pool in pools:
        torch.manual_seed(1)
        pool.pools.normal_()
    reference = Llama(spec, Checkpoint(folder, torch.float32, CPU), REFERENCE)
    captures = Captures()
    model = Llama(spec, Checkpoint(folder, torch.float32, CPU), TRITON)
    graphed = GraphedModel(model, pools[1], max_sequences=3, max_model_len=12, capture=captures)
    assert torch.equal(pools[0].pools, pools[1].pools), "capturing stores nothing"
    assert len({plan.sums.data_ptr() for graph in graphed._graphs for plan in graph.plans.values()}) == 1
    for lengths in ([9], [5, 12, 1], [6, 7]):
        batch = decodes(lengths, [11, 12, 13][: len(lengths)])
        expected = reference.forward(batch, pools[0])
        torch.testing.assert_close(graphed.forward(batch, pools[1]), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(pools[1].pools, pools[0].pools, atol=1e-5, rtol=1e-5)
    assert captures.replayed == 3
    four = decodes([2, 2, 2, 2], [1, 2, 3, 4])
    assert graphed.forward(four, pools[1]).shape == (4, spec.vocab_size)
    assert captures.replayed == 3, "four sequences are more than a graph has room for"


def test_graph_sizes() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(16) == [1, 2, 4, 8, 16]
    assert graph_sizes(50) == [1, 2, 4, 8, 16, 32, 48, 50]
