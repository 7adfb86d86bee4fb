"""How often Python looks for garbage while requests are served."""

from __future__ import annotations

import gc

from scheduler_svc.garbage import NEW_OBJECTS, collect_seldom


def test_what_is_loaded_is_left_alone_and_cycles_are_found_all_the_same() -> None:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        collect_seldom()
        assert gc.get_threshold()[0] == NEW_OBJECTS
        assert gc.get_freeze_count() > frozen
        cycles: list[list[object]] = [[] for _ in range(10)]
        for cycle in cycles:
            cycle.append(cycle)
        del cycles, cycle
        assert gc.collect() >= 10
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
