"""The invariants are looked at in production too: by the loop itself, whenever it is idle."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.scheduler.loop_in_process import ask, running_loop, until


@pytest.mark.parametrize("window", [1, 2])
async def test_a_lost_block_is_reported_when_the_loop_is_idle(window: int) -> None:
    with capture_logs() as lines:
        async with asyncio.timeout(30), running_loop(window=window) as loop:
            core = loop._core
            assert core is not None
            assert (await ask(loop)).num_output_tokens == 17
            await until(lambda: not core.has_work)
            await asyncio.sleep(0)
            assert not [line for line in lines if line["log_level"] == "error"]
            core._blocks._pool.allocate()
            assert (await ask(loop)).num_output_tokens == 17
            await until(lambda: any(line["log_level"] == "error" for line in lines))
    errors = [line for line in lines if line["log_level"] == "error"]
    assert "has lost count of its holders" in errors[0]["reason"]
