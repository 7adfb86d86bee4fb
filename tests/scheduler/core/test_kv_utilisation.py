"""How much of the held memory holds tokens: exact, from the plans and the block tables they build."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from common.step import ExecutorInfo
from tests.fakes import INFO
from tests.scheduler.core.audit import Audit
from tests.scheduler.core.driver import Driver, request

BUSY = 8
"""Fewer sequences than this say little about a workload."""
ROOMY = replace(INFO, num_blocks=2048)


def stored(audit: Audit) -> int:
    """Tokens in the blocks of all tables, those in a shared block once."""
    size = audit.info.block_size
    filled: dict[int, int] = {}
    for table in audit.tables.values():
        for index, block in enumerate(table.blocks):
            filled[block] = max(filled.get(block, 0), min(size, table.computed - index * size))
    return sum(filled.values())


def mixed_workload(driver: Driver, *, common_prefix: int, seed: int) -> list[tuple[int, int]]:
    """Run 64 requests of 16 to 512 tokens, answers of 16 to 128 included; (tokens in tables, slots held) by step.

    Every third prompt begins with the same `common_prefix` tokens. Blocks that wait for a plan in flight are held too.
    """
    draw = random.Random(seed)
    prefix = [draw.randrange(101) for _ in range(common_prefix)]
    readings = []
    for sequence_id in range(1, 65):
        start = prefix if sequence_id % 3 == 0 else []
        prompt = [*start, *(draw.randrange(101) for _ in range(draw.randint(16, 384 - len(start))))]
        driver.add(request(sequence_id, prompt, max_tokens=draw.randint(16, 128)))
    while driver.step():
        tables = driver.audit.tables.values()
        size = driver.executor.info.block_size
        assert all(0 <= len(table.blocks) * size - table.computed < size for table in tables), "a block is wasted"
        if len(tables) >= BUSY:
            readings.append((stored(driver.audit), driver.scheduler.snapshot().pool.held * size))
    driver.drain()
    return readings


@pytest.mark.parametrize("window", [1, 2])
@pytest.mark.parametrize("common_prefix", [0, 100])
@pytest.mark.parametrize("info", [ROOMY, replace(ROOMY, num_blocks=150)], ids=["room", "preemptions"])
def test_held_blocks_are_full_of_tokens(window: int, common_prefix: int, info: ExecutorInfo) -> None:
    driver = Driver(info, window=window)
    readings = mixed_workload(driver, common_prefix=common_prefix, seed=window)
    tokens, slots = (sum(column) for column in zip(*readings, strict=True))
    assert len(readings) > 100
    assert tokens / slots >= 0.95
    assert (driver.scheduler.totals.preemptions > 0) == (info.num_blocks == 150)
    assert (driver.scheduler.totals.cached_tokens > 500) == bool(common_prefix)


def test_the_reading_of_the_pool_is_what_the_tables_hold() -> None:
    """`tokens_held` of a snapshot, in steps after which no block waits for a plan in flight."""
    driver = Driver(ROOMY, window=1)
    for sequence_id in range(1, 31):
        driver.add(request(sequence_id, [sequence_id % 7, *range(sequence_id)], max_tokens=40 + sequence_id))
    readings = 0
    while driver.step():
        snapshot = driver.scheduler.snapshot()
        if snapshot.running == len(driver.audit.tables):
            assert snapshot.pool.held == len(driver.audit.held)
            assert snapshot.tokens_held == stored(driver.audit)
            readings += 1
    assert readings > 30
    driver.drain()
