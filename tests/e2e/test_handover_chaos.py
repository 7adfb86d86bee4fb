"""The short form of `make chaos`."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.chaos import Wave, run


async def test_every_answer_is_whole_whatever_happens_around_it(tmp_path: Path) -> None:
    waves = (
        Wave(streams=48, scheduler_kills=2, policy_swaps=2, standbys=1, executor_kills=0),
        Wave(streams=48, scheduler_kills=1, policy_swaps=1, standbys=0, executor_kills=1),
    )
    report = await run(tmp_path, waves, seed=7, kinds=10, say=print)
    assert report.answers >= 96
    assert report.left_and_came_back > 0
    assert report.broken_streams >= 4 * 24, "the faults met streams"
    assert (report.wrong, report.lost, report.repeated) == (0, 0, 0)
    without_a_dead_executor, with_one = report.recomputed
    assert without_a_dead_executor == 0
    assert with_one > 0, "the second count can count"
