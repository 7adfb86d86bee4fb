"""A client that was the limit is noticed."""

from __future__ import annotations

import asyncio
import time

import pytest

from citybus.bench.saturation import ClientLoad, LagWatch, Limits

FINE = ClientLoad(late_p99_s=0.1, late_max_s=9.0, lag_p99_s=0.05, lag_max_s=9.0, cpu=0.9)


def test_what_is_at_its_limit_is_no_fault() -> None:
    assert FINE.faults(Limits(), median_e2e_s=0.1) == []


@pytest.mark.parametrize(
    ("load", "fault"),
    [
        (ClientLoad(0.11, 0.11, 0.0, 0.0, 0.0), "requests were sent up to 110 ms late"),
        (ClientLoad(0.0, 0.0, 0.06, 0.06, 0.0), "event loop ran 60 ms late"),
        (ClientLoad(0.0, 0.0, 0.0, 0.0, 0.95), "the client used 95 % of a core"),
    ],
)
def test_what_is_over_its_limit_is_named(load: ClientLoad, fault: str) -> None:
    (found,) = load.faults(Limits(), median_e2e_s=0.1)
    assert fault in found


def test_long_answers_forgive_a_hundredth_of_their_latency() -> None:
    late = ClientLoad(0.4, 0.4, 0.4, 0.4, 0.0)
    assert late.faults(Limits(), median_e2e_s=40.0) == []
    assert len(late.faults(Limits(), median_e2e_s=39.0)) == 2


async def test_an_event_loop_that_is_held_up_is_seen() -> None:
    with LagWatch() as watch:
        await asyncio.sleep(0)
        time.sleep(0.2)
        await asyncio.sleep(0.05)
    found = watch.load([0.0, 0.3])
    assert found.lag_max_s >= 0.15
    assert found.late_max_s == 0.3
    assert "event loop" in " ".join(found.faults(Limits(), 0.0))
