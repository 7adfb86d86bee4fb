"""Load generators that are killed: no seat and no block stays behind.

CITYBUS_TEST_DEEP=1 in the environment runs 10,000 mixed requests afterwards instead of 600 (minutes).
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from citybus import FinishReason
from tests.e2e.field_cases.crowd import crowd
from tests.e2e.field_cases.field import Field, running_field
from tests.harness import wait_until

ROUNDS = 5
STREAMS = 256
BATCH = 200
BATCHES = 50 if os.environ.get("CITYBUS_TEST_DEEP") else 3
BLOCKS = 512


@pytest.fixture(scope="module")
def busy_field(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with running_field(tiny, tmp_path_factory.mktemp("busy-bus"), executor=("--num-blocks", BLOCKS)) as field:
        yield field
        field.check()


def kill_a_crowd(field: Field, delay_s: float) -> int:
    """Kill a client so long after its first request was accepted; returns how many requests were live then."""
    before = field.bus.status().totals.accepted
    with crowd(field.bus.address, STREAMS, 20, 200) as process:
        wait_until(lambda: field.bus.status().totals.accepted > before, "the first is accepted", 30)
        time.sleep(delay_s)
        state = field.bus.status()
        process.kill()
        field.bus.wait_idle()
    return state.running + state.waiting


def test_F26_seats_and_blocks_come_back_after_every_kill(busy_field: Field) -> None:
    chance = random.Random(26)
    live = [kill_a_crowd(busy_field, chance.uniform(0, 2)) for _ in range(ROUNDS)]
    assert max(live) > STREAMS / 2
    totals = busy_field.bus.status().totals
    assert totals.accepted == totals.finished
    check_mixed_traffic(busy_field)


def check_mixed_traffic(field: Field) -> None:
    """Whole answers, stopped ones, cancelled ones and late ones, 32 at a time; every block is back after each batch."""
    for batch in range(BATCHES):
        with ThreadPoolExecutor(32) as pool:
            assert sum(pool.map(lambda number: ask(field, number), range(batch * BATCH, (batch + 1) * BATCH))) == BATCH
        field.bus.wait_idle()
        state = field.bus.status()
        assert state.pool.held == 0
        assert state.pool.free + state.pool.cached == BLOCKS
        assert state.totals.accepted == state.totals.finished


def ask(field: Field, number: int) -> bool:
    """One request of the mix; whether it ended as it should."""
    prompt, length = [number % 250, *range(number % 40)], 1 + number % 30
    match number % 4:
        case 0:
            with field.client.generate(token_ids=prompt, max_tokens=200, ignore_eos=True) as stream:
                return next(stream).first_index == 0
        case 1:
            completion = field.ask(prompt, length, stop_token_ids=list(range(60)))
            return completion.finish.reason in (FinishReason.STOP, FinishReason.LENGTH)
        case 2:
            return len(field.ask(prompt, length, cache_salt=uuid.uuid4().hex).token_ids) == length
        case _:
            return field.ask(prompt, 200, time_limit_ms=20).finish.reason is not FinishReason.STOP
