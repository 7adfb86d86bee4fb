"""The loop while its process is to end."""

from __future__ import annotations

import asyncio

import pytest

from common.errors import Unavailable
from tests.scheduler.loop_in_process import ask, running_loop


async def test_what_is_refused_for_the_end_stays_refused() -> None:
    async with running_loop() as loop:
        loop.refuse(True)
        with pytest.raises(Unavailable, match=r"draining or shutting down: send .* another one, or here again later"):
            ask(loop)
        loop.refuse(False)
        answer = ask(loop)
        draining = asyncio.create_task(loop.drain())
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="shutting down"):
            loop.refuse(False)
        with pytest.raises(Unavailable, match="shutting down"):
            ask(loop)
        assert (await answer).num_output_tokens == 17
        async with asyncio.timeout(20):
            await draining
