"""What the watch over starvation keeps."""

from __future__ import annotations

from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.starvation import StarvationWatch
from tests.scheduler.core.driver import request


def test_tenants_that_boarded_long_ago_are_forgotten() -> None:
    watch, kept = StarvationWatch(10.0), []
    for second in range(2_000):
        watch.starved([], [Sequence(request(second, [1], tenant=f"t{second}"), 1)], float(second))
        kept.append(len(watch._last_boarding))
    assert max(kept) == 128
    assert min(kept[200:]) == 11, "those of the last ten seconds, and the one of now"
