"""Events reach every watcher, and the hand-over those that come after it too."""

from __future__ import annotations

from scheduler_svc.events import MAX_UNREAD, EventBus, ExecutorConnected, ExecutorLost, HandOver


def test_hand_over_is_told_to_later_watchers_first() -> None:
    bus, found = EventBus(), HandOver(2, 6, 2, 0, 10, 0)
    bus.publish(ExecutorConnected())
    bus.publish(found)
    bus.publish(ExecutorLost())
    for _ in range(2):
        with bus.watch() as queue:
            bus.publish(ExecutorConnected())
            numbered = [queue.get_nowait() for _ in range(queue.qsize())]
            assert [each.event for each in numbered] == [found, ExecutorConnected()]
            assert numbered[0].number == 2


def test_slow_watcher_misses_the_eldest() -> None:
    bus = EventBus()
    with bus.watch() as queue:
        for _ in range(MAX_UNREAD + 3):
            bus.publish(ExecutorLost())
        assert queue.qsize() == MAX_UNREAD
        assert queue.get_nowait().number == 4


def test_hand_over_of_nothing_is_none() -> None:
    assert not HandOver(7, 0, 0, 0, 0, 0)
    assert all(HandOver(7, *(int(place == number) for place in (0, 1, 9, 2, 3))) for number in range(4))
