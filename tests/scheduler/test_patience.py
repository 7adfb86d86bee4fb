"""An executor that always comes back and never gets on: requests do not wait for it until their time limit."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import Unavailable
from common.step import StepPlan
from tests.scheduler.loop_in_process import ask, running_loop, until

DEADLY = 99


def kills(plan: StepPlan) -> bool:
    return any(DEADLY in row.token_ids for row in plan.new_sequences)


async def test_a_request_that_kills_every_executor_fails_and_the_next_ones_are_served() -> None:
    async with asyncio.timeout(60), running_loop(kills, executor_timeout=0.5) as loop:
        with pytest.raises(Unavailable, match="the executor is away"):
            await ask(loop, (DEADLY,))
        await until(loop.info)
        assert (await ask(loop)).num_output_tokens == 17


async def test_an_executor_that_is_lost_now_and_then_loses_no_request() -> None:
    deaths = iter([True, False] * 4)

    def dies(plan: StepPlan) -> bool:
        return bool(plan.new_sequences) and next(deaths, False)

    async with asyncio.timeout(60), running_loop(dies, executor_timeout=0.5) as loop:
        for _ in range(4):
            assert (await ask(loop)).num_output_tokens == 17


async def test_work_without_progress_is_unhealthy_and_ends_with_an_error() -> None:
    """A core that plans nothing for those who wait, as it never should: the watchdog of the loop sees it."""
    told: list[bool] = []
    async with asyncio.timeout(60), running_loop(told=told, executor_timeout=0.5) as loop:
        core = loop.core
        assert core is not None and told == [True]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core, "schedule", lambda now: None)
            requests = [ask(loop), ask(loop)]
            await until(lambda: False in told)
            for request in requests:
                with pytest.raises(Unavailable, match="the executor is away"):
                    await request
        await until(loop.info)
        assert (await ask(loop)).num_output_tokens == 17
        assert told[-1] and (core.snapshot().running, core.snapshot().waiting) == (0, 0)
