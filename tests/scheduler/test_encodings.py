"""A request can be cancelled at any moment of its encoding."""

from __future__ import annotations

import asyncio

import pytest

from scheduler_svc.core.request import FinishReason
from scheduler_svc.encodings import Encodings, Unencoded

KEY = ("tenant", "id")


async def test_a_cancel_that_comes_between_the_end_of_the_encoding_and_whoever_waits_for_it_is_kept() -> None:
    encodings = Encodings()
    found: list[bool] = []

    async def encode() -> int:
        asyncio.get_running_loop().call_soon(lambda: found.append(encodings.cancel(KEY)))  # before the one who waits
        return 5

    with pytest.raises(Unencoded) as ended:
        await encodings.run(KEY, encode(), None)
    assert ended.value.reason is FinishReason.CANCELLED
    assert found == [True]
    assert not encodings.cancel(KEY)


async def test_an_encoding_that_nobody_ends_gives_its_result_or_its_error() -> None:
    encodings = Encodings()

    async def encode(number: int) -> float:
        return 1 / number

    assert await encodings.run(KEY, encode(2), None) == 0.5
    with pytest.raises(ZeroDivisionError):
        await encodings.run(KEY, encode(0), 5.0)
    assert not encodings.cancel(KEY)
