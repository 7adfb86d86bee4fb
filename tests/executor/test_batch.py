"""Rows as tensors, number for number."""

from __future__ import annotations

import pytest
import torch

from common.step import Sampling
from executor_svc.batch import build_batch, build_draws
from executor_svc.sequence import HeldSequence, Row, block_table

CPU = torch.device("cpu")


def row(tokens: list[int], start: int, end: int, blocks: list[int], prompt: int = 1, seed: int = 0) -> Row:
    held = HeldSequence(1, tokens, prompt, start, block_table(blocks), Sampling(0.5, 0.9, 3, 0.1, seed), 0)
    return Row(held, start, end, draws=end == len(tokens))


def test_chunks_and_decodes_become_one_batch() -> None:
    rows = [
        row([10, 11, 12, 13, 14], 2, 5, [7, 3]),
        row([20, 21, 22], 1, 2, [5]),
        row([30, 31, 32, 33, 34, 35, 36, 37, 38], 8, 9, [1, 0, 9]),
    ]
    batch = build_batch(rows, 4, CPU)
    assert batch.token_ids.tolist() == [12, 13, 14, 21, 38]
    assert batch.positions.tolist() == [2, 3, 4, 1, 8]
    assert batch.slots.tolist() == [30, 31, 12, 21, 36]
    assert batch.drawing_rows.tolist() == [2, 4]
    assert batch.paged.block_tables.tolist() == [[7, 3, 0], [5, 0, 0], [1, 0, 9]]
    assert batch.paged.lengths == [5, 2, 9]
    assert batch.paged.query_starts == [0, 3, 4, 5]
    assert {batch.token_ids.dtype, batch.slots.dtype, batch.drawing_rows.dtype} == {torch.int64}


def test_draws_count_generated_tokens_and_keep_the_bits_of_the_seed() -> None:
    draws = build_draws([row([1, 2, 3, 4], 3, 4, [0], prompt=3, seed=2**64 - 1), row([1], 0, 1, [1], seed=5)], CPU)
    assert draws.counters.tolist() == [1, 0]
    assert draws.seeds.tolist() == [-1, 5]
    assert draws.temperatures.tolist() == [0.5, 0.5]
    assert (draws.top_ks.tolist(), draws.top_ps.tolist(), draws.min_ps.tolist()) == ([3, 3], [0.9, 0.9], [0.1, 0.1])
    assert draws.temperatures.dtype is torch.float64


def test_a_draft_is_computed_behind_the_known_tokens_and_drawn_at() -> None:
    guessed = row([10, 11, 12, 13], 3, 4, [7, 3], prompt=2, seed=9)._replace(end=7, draft=(50, 51, 52))
    batch = build_batch([row([20, 21, 22], 1, 2, [5]), guessed, row([30, 31], 1, 2, [6])], 4, CPU)
    assert batch.token_ids.tolist() == [21, 13, 50, 51, 52, 31]
    assert batch.positions.tolist() == [1, 3, 4, 5, 6, 1]
    assert batch.slots.tolist() == [21, 31, 12, 13, 14, 25]
    assert batch.drawing_rows.tolist() == [1, 2, 3, 4, 5]
    assert batch.paged.lengths == [2, 7, 2]
    assert batch.paged.query_starts == [0, 1, 5, 6]
    draws = build_draws([guessed, row([30, 31], 1, 2, [6], seed=4)], CPU)
    assert draws.counters.tolist() == [2, 3, 4, 5, 1]
    assert draws.seeds.tolist() == [9, 9, 9, 9, 4]


@pytest.mark.parametrize(
    ("drawn", "count"),
    [([1, 2, 3], 1), ([5, 2, 3], 2), ([5, 6, 3], 3), ([5, 6, 5], 3), ([1, 6, 3], 1)],
)
def test_what_is_drawn_behind_a_wrong_guess_does_not_count(drawn: list[int], count: int) -> None:
    assert row([10], 0, 1, [0])._replace(end=3, draft=(5, 6)).num_valid(drawn) == count
    assert row([10], 0, 1, [0]).num_valid(drawn[:1]) == 1


def test_no_row_draws() -> None:
    batch = build_batch([row([1, 2, 3], 0, 2, [0])], 4, CPU)
    assert batch.drawing_rows.shape == (0,)
