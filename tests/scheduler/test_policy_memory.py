"""The policy that decides is still the one after a change of the scheduler, with what it knows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from scheduler_svc import policy_memory
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.policy import Policy
from scheduler_svc.file_journal import FileJournal, open_journal
from scheduler_svc.journal import NoJournal
from scheduler_svc.policy_memory import MAX_RECORD_BYTES, PolicyMemory
from scheduler_svc.policy_shelf import PolicyShelf

SHELF = PolicyShelf()
WEIGHTS = {"weights": "gold=0.123456789,free=3", "prompt_cost": "0.5"}
SERVED: dict[str, Any] = {"served": {"gold": 1.25, "freé": 7e300}}


def fair_share(state: Mapping[str, object]) -> Policy:
    policy = SHELF.make("fair_share", WEIGHTS)
    policy.import_state(state)
    return policy


class Keeps(Policy):
    """Has the state it is given."""

    name = "keeps"

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def export_state(self) -> Mapping[str, object]:
        if isinstance(self.state, Exception):
            raise self.state
        return {"it": self.state}


async def remember(path: Path, policy: Policy, given: str = "fcfs") -> dict[str, Any]:
    """A scheduler's life with `policy`; what it leaves."""
    journal = await open_journal(path)
    await PolicyMemory(GuardedPolicy(policy), journal, given).saved()
    await journal.close()
    again = await open_journal(path)
    record = json.loads(again.policy or b"")
    await again.close()
    assert isinstance(record, dict)
    return record


async def restored(path: Path, given: str = "fcfs") -> GuardedPolicy:
    """The next scheduler's policy."""
    journal = await open_journal(path)
    guarded = GuardedPolicy(SHELF.make(given, {}))
    PolicyMemory(guarded, journal, given).restore(SHELF)
    await journal.close()
    return guarded


async def overwrite(path: Path, **changes: object) -> None:
    journal = await open_journal(path)
    journal.remember_policy(json.dumps(json.loads(journal.policy or b"") | changes).encode())
    await journal.close()


async def test_policy_parameters_and_state_go_on(tmp_path: Path) -> None:
    path, before = tmp_path / "journal", fair_share(SERVED)
    await remember(path, before)
    live = (await restored(path)).live
    assert type(live) is type(before)
    assert live.parameters == before.parameters
    assert live.export_state() == SERVED


async def test_one_that_fails_later_is_rolled_back_to_that_of_the_command_line(tmp_path: Path) -> None:
    await remember(tmp_path / "journal", fair_share(SERVED), "priority")
    guarded = await restored(tmp_path / "journal", "priority")
    guarded.fault = "a fault"
    guarded.settle()
    assert guarded.name == "priority"


async def test_another_command_line_is_obeyed(tmp_path: Path) -> None:
    await remember(tmp_path / "journal", fair_share(SERVED))
    assert (await restored(tmp_path / "journal", "priority")).name == "priority"


async def test_state_of_the_command_lines_own_policy_goes_on_too(tmp_path: Path) -> None:
    await remember(tmp_path / "journal", fair_share(SERVED), "fair_share")
    assert (await restored(tmp_path / "journal", "fair_share")).live.export_state() == SERVED


async def test_nothing_is_changed_where_nothing_was_set(tmp_path: Path) -> None:
    await remember(tmp_path / "journal", SHELF.make("priority", {}), "priority")
    with capture_logs() as logs:
        assert (await restored(tmp_path / "journal", "priority")).name == "priority"
    assert logs == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "gone"}, "there is no policy 'gone'"),
        ({"parameters": {"prompt_cost": "-1"}}, "must not be less than 0"),
        ({"parameters": {"unknown": "1"}}, "there is no parameter 'unknown'"),
        ({"state": {"served": {"gold": "much"}}}, "cannot take over: ValueError"),
    ],
)
async def test_what_cannot_go_on_is_said_and_the_command_line_decides(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    path = tmp_path / "journal"
    await remember(path, fair_share(SERVED))
    await overwrite(path, **changes)
    with capture_logs() as logs:
        guarded = await restored(path)
    assert (guarded.name, guarded.live.export_state()) == ("fcfs", {})
    (line,) = logs
    assert (line["log_level"], line["event"], line["instead"]) == ("warning", "policy set before cannot go on", "fcfs")
    assert reason in line["reason"]


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 0


@pytest.mark.parametrize(
    "state",
    [
        object(),
        b"bytes",
        {1: "a key that is no text"},
        (1, 2),
        {3},
        float("nan"),
        float("inf"),
        "x" * MAX_RECORD_BYTES,
        RuntimeError("export fails"),
    ],
    ids=lambda state: type(state).__name__,
)
async def test_state_that_is_no_json_is_left_and_the_policy_kept(tmp_path: Path, state: object) -> None:
    journal = await open_journal(tmp_path / "journal")
    memory = PolicyMemory(GuardedPolicy(Keeps(state)), journal, "fcfs")
    with capture_logs() as logs:
        await memory.saved()
        await memory.saved()
    assert len(logs) == (0 if isinstance(state, Exception) else 1), "said once; a failing export is the guard's"
    await journal.close()
    again = await open_journal(tmp_path / "journal")
    assert json.loads(again.policy or b"") == {"given": "fcfs", "name": "keeps", "parameters": {}, "state": {}}
    await again.close()


async def test_state_of_any_shape_of_json_is_kept(tmp_path: Path) -> None:
    state = [None, True, -3, 1e-300, "ümlaut\0", {"": [nested(50)]}, 2**70]
    record = await remember(tmp_path / "journal", Keeps(state))
    assert record["state"] == {"it": state}


async def test_state_is_saved_while_it_changes_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_memory, "INTERVAL_S", 0.01)
    journal = await open_journal(tmp_path / "journal")
    policy, written = Keeps(1), []

    def note(record: bytes) -> None:
        written.append(json.loads(record)["state"]["it"])
        FileJournal.remember_policy(journal, record)

    monkeypatch.setattr(journal, "remember_policy", note)
    async with PolicyMemory(GuardedPolicy(policy), journal, "fcfs").kept():
        while written != [1]:
            await asyncio.sleep(0.01)
        policy.state = 2
        while written != [1, 2]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        policy.state = 3
    assert written == [1, 2, 3], "only what is new is written"
    await journal.close()


async def test_without_a_journal_nothing_is_remembered() -> None:
    guarded = GuardedPolicy(Keeps(RuntimeError("is never asked")))
    memory = PolicyMemory(guarded, NoJournal(), "fcfs")
    memory.restore(SHELF)
    async with memory.kept():
        await memory.saved()
    assert guarded.name == "keeps"
