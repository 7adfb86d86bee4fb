"""The `priority` policy over the wire."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from citybus import Client
from tests.harness import running_bus, wait_until


@pytest.mark.parametrize(("policy", "order"), [("priority", [3, 5, 4, 1, 0, 2]), ("fcfs", [0, 1, 2, 3, 4, 5])])
def test_who_boards_first_when_the_seats_are_full(
    counting: Path, tmp_path: Path, policy: str, order: list[int]
) -> None:
    flags = ("--num-blocks", "2048", "--max-sequences", "1")
    with running_bus(counting, tmp_path, executor=flags, scheduler=("--policy", policy)) as bus:
        with Client(bus.address) as client, ExitStack() as stack:
            sitting = stack.enter_context(client.generate(token_ids=[0], temperature=0.0))
            next(sitting)
            streams = []
            for index, priority in enumerate([0, 1, 0, 1000, 500, 1000]):
                request = client.generate(token_ids=[index], temperature=0.0, max_tokens=3, priority=priority)
                streams.append(stack.enter_context(request))
                assert streams[-1].request_id()
            wait_until(lambda: bus.status().waiting == len(streams), "all wait", 10)
            sitting.cancel()
            for index, stream in enumerate(streams):
                assert [token for delta in stream for token in delta.token_ids] == [index + 1, index + 2, index + 3]
        boarded = [sequence_id for plan in bus.plans() for sequence_id, _ in plan["new"]]
        first = boarded[0] + 1
        assert [sequence_id - first for sequence_id in boarded[1:]] == order
        bus.wait_idle()
