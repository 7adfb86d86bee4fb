from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable

import pytest

from scheduler_svc.alarm import Alarm
from scheduler_svc.core.guard import GuardedPolicy, OverTime, PolicyChange
from scheduler_svc.core.policy import Policy, StepView


def forever() -> None:
    while True:
        pass


def forever_and_deaf() -> None:
    """Catches what interrupts it, once."""
    try:
        forever()
    except BaseException:
        forever()


@pytest.mark.parametrize("loop", [forever, forever_and_deaf])
def test_a_loop_without_end_is_ended(loop: Callable[[], None]) -> None:
    alarm = Alarm(0.01)
    with pytest.raises(OverTime, match="did not end within 40 ms"), alarm:
        loop()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_takes_too_long_is_told_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = iter((1.0, 11.5))
    monkeypatch.setattr(time, "thread_time", lambda: next(computed))
    with pytest.raises(OverTime, match="took 10500 ms, and 10000 ms are allowed"), Alarm(10.0):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_is_in_time_leaves_no_alarm_behind() -> None:
    alarm = Alarm(10.0)
    for _ in range(3):
        with alarm:
            pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_error_within_goes_its_way() -> None:
    with pytest.raises(KeyError), Alarm(10.0):
        raise KeyError
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_policy_that_loops_is_rolled_back() -> None:
    class Loops(Policy):
        name = "loops"

        def token_budget(self, step: StepView, now: float) -> int:
            while True:
                pass

    changes: list[PolicyChange] = []
    guarded = GuardedPolicy(Loops(), time_limit=Alarm(0.01), on_change=changes.append)
    assert guarded.token_budget(StepView(max_tokens=10, num_decodes=3), 0.0) == 7
    guarded.settle()
    assert [change.fault for change in changes] == ["token_budget: did not end within 40 ms"]


def test_it_never_rings_after_its_end() -> None:
    """It rings again and again, every 0.2 ms: in some of so many rounds while it ends."""
    alarm = Alarm(0.0002)
    gc.collect()
    gc.disable()  # what is raised in a finalizer is lost, and pytest minds
    try:
        for _ in range(1_000):
            with pytest.raises(OverTime), alarm:
                forever()
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        gc.enable()
