from __future__ import annotations

import pytest

from scheduler_svc.core.block_pool import BlockPool


def test_blocks_are_handed_out_in_order_and_come_back_in_the_order_they_were_let_go() -> None:
    pool = BlockPool(4)
    assert [pool.allocate() for _ in range(3)] == [0, 1, 2]
    for block in (1, 0):
        pool.release(block, keep=False)
    assert [pool.allocate() for _ in range(3)] == [3, 1, 0]
    assert (pool.num_free, pool.num_cached, pool.num_held) == (0, 0, 4)


def test_empty_blocks_go_before_cached_ones_and_the_longest_cached_goes_first() -> None:
    pool = BlockPool(5)
    for _ in range(4):
        pool.allocate()
    for block, keep in ((2, True), (0, True), (1, False), (3, True)):
        pool.release(block, keep)
    assert (pool.num_free, pool.num_cached, pool.num_held, pool.num_available) == (2, 3, 0, 5)
    assert [pool.allocate() for _ in range(5)] == [4, 1, 2, 0, 3]


def test_a_cached_block_that_is_held_again_is_not_handed_out() -> None:
    pool = BlockPool(2)
    for block in (pool.allocate(), pool.allocate()):
        pool.release(block, keep=True)
    pool.hold(0)
    pool.hold(0)
    assert pool.holders(0) == 2
    assert pool.allocate() == 1
    with pytest.raises(IndexError):
        pool.allocate()
    pool.release(0, keep=True)
    with pytest.raises(IndexError):
        pool.allocate()
    pool.release(0, keep=True)
    assert pool.allocate() == 0


def test_a_block_held_again_becomes_the_youngest_of_the_cached() -> None:
    pool = BlockPool(3)
    for block in [pool.allocate() for _ in range(3)]:
        pool.release(block, keep=True)
    pool.hold(0)
    pool.release(0, keep=True)
    assert [pool.allocate() for _ in range(3)] == [1, 2, 0]


@pytest.mark.parametrize("damage", ["two states", "no state", "twice free", "released by nobody"])
def test_a_damaged_pool_is_noticed(damage: str) -> None:
    pool = BlockPool(3)
    held = pool.allocate()
    pool.check_invariants()
    match damage:
        case "two states":
            pool._cached[held] = None
        case "no state":
            pool._free.pop()
        case "twice free":
            pool._free.append(pool._free[0])
        case "released by nobody":
            pool._holders[pool._free[0]] = -1
    with pytest.raises(AssertionError):
        pool.check_invariants()
