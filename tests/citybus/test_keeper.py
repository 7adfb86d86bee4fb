"""A service that is replaced, told to end, or ends for good."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import signal
from pathlib import Path

import pytest

from citybus.failure import Failure
from citybus.supervisor import keeper
from citybus.supervisor.child import Service
from tests.citybus.stage import FIRST, SECOND, Stage, terminate, until


@pytest.fixture
def lock(tmp_path: Path) -> tuple[str, ...]:
    return ("--lock", str(tmp_path / "lock"))


def whereabouts(stage: Stage) -> list[str]:
    """What happened to the second service, in order, with each process by its number."""
    pids = list(dict.fromkeys(pid for pid, name, _ in stage.events() if name == SECOND))
    return [f"{what} {pids.index(pid) + 1}" for pid, name, what in stage.events() if name == SECOND]


async def test_new_process_stands_by_before_the_old_one_lets_go(
    stage: Stage, lock: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    supervisor = stage.supervisor(second=lock)

    async def when_up() -> None:
        for version in ("2", "3", "4", "5"):  # more often than a service may die
            monkeypatch.setenv("STAND_IN_VERSION", version)
            await supervisor.replace(SECOND, told.append)
        await terminate()

    await supervisor.run(when_up)
    assert told[:2] == [f"the new {SECOND} starts", f"the new {SECOND} stands by"]
    assert [line.partition(",")[0] for line in told[2::3]] == [f"version {n} -> {n + 1}" for n in (1, 2, 3, 4)]
    assert re.fullmatch(r"version 1 -> 2, with a pause of \d+\.\d\d s", told[2])
    taken_over = [line for line in stage.said if "has taken over" in line]
    assert taken_over == [f"a new {SECOND} has taken over: {how}" for how in told[2::3]]
    assert not any("stands by" in line for line in stage.said), "that is for who asked for the upgrade"
    assert whereabouts(stage) == [
        *("started 1", "left 1", "started 2", "left 2", "started 3"),
        *("left 3", "started 4", "left 4", "started 5", "ended 5"),
    ]
    assert not any("starting it again" in line for line in stage.said)
    stage.assert_nothing_runs()


async def test_broken_new_version_leaves_the_old_one_alone(
    stage: Stage, lock: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = stage.supervisor(second=lock)

    async def when_up() -> None:
        monkeypatch.setenv("STAND_IN_VERSION", "broken")
        with pytest.raises(Failure) as failure:
            await supervisor.replace(SECOND, stage.said.append)
        assert str(failure.value) == (
            f"the new {SECOND} ended while it started (exit code 2): boom: no such flag: the old one goes on"
        )
        monkeypatch.setenv("STAND_IN_VERSION", "2")
        await supervisor.replace(SECOND, stage.said.append)
        await terminate()

    await supervisor.run(when_up)
    assert whereabouts(stage) == ["started 1", "left 1", "started 2", "ended 2"]
    stage.assert_nothing_runs()


async def test_new_process_that_never_stands_by_is_killed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "STANDBY_S", 1.0)
    lock = stage.journal.with_name("lock")
    supervisor = stage.supervisor(second=("--lock", str(lock)))

    async def when_up() -> None:
        lock.unlink()  # the next process locks another file, and has nothing to wait for
        with pytest.raises(Failure, match=f"the new {SECOND} did not stand by within 1 s: the old one goes on"):
            await supervisor.replace(SECOND, stage.said.append)
        await terminate()

    await supervisor.run(when_up)
    assert whereabouts(stage)[-1] == "ended 1"
    stage.assert_nothing_runs()


@pytest.mark.parametrize("dies", [False, True])
async def test_old_process_that_cannot_let_go_or_dies_is_followed_by_the_new_one(
    stage: Stage, lock: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    monkeypatch.setattr(keeper, "LET_GO_S", 0.2)
    supervisor = stage.supervisor(second=lock)

    async def when_up() -> None:
        old = next(pid for pid, name, _ in stage.events() if name == SECOND)
        os.kill(old, signal.SIGSTOP)

        def tell(line: str) -> None:
            if dies and "stands by" in line:
                os.kill(old, signal.SIGKILL)

        await supervisor.replace(SECOND, tell)
        await terminate()

    await supervisor.run(when_up)
    assert whereabouts(stage) == ["started 1", "started 2", "ended 2"]
    assert (f"the {SECOND} did not end within 0.2 s: killing it" in stage.said) is not dies
    assert not any("starting it again" in line for line in stage.said)
    stage.assert_nothing_runs()


async def test_a_stop_ends_the_standby_first(stage: Stage, lock: tuple[str, ...]) -> None:
    supervisor = stage.supervisor(second=lock)

    async def when_up() -> None:
        def tell(line: str) -> None:
            if "starts" in line:
                os.kill(os.getpid(), signal.SIGTERM)

        with pytest.raises(Failure, match="ended while it started"):
            await supervisor.replace(SECOND, tell)

    await supervisor.run(when_up)
    assert whereabouts(stage) == ["started 1", "ended 1"]
    stage.assert_nothing_runs()


async def test_a_service_whose_journal_another_process_holds_says_so_and_waits_for_it(
    stage: Stage, lock: tuple[str, ...]
) -> None:
    standby = (
        f"the {SECOND} stands by: another one holds the journal {lock[1]}, and this one serves once that one has ended;"
        " --journal names another file"
    )
    with Path(lock[1]).open("w") as elsewhere:
        fcntl.flock(elsewhere, fcntl.LOCK_EX)

        async def let_go() -> None:
            await until(lambda: standby in stage.said)
            assert whereabouts(stage) == []
            elsewhere.close()

        letting_go = asyncio.create_task(let_go())
        await stage.supervisor(second=lock).run(terminate)
        await letting_go
    assert stage.said.count(standby) == 1
    assert whereabouts(stage) == ["started 1", "ended 1"]


async def test_time_to_start_in_does_not_count_while_it_stands_by() -> None:
    kept = keeper.Keeper(Service(SECOND, (), "", 0.0), lambda line: None, asyncio.Event(), verbose=False)
    with pytest.raises(Failure, match=f"the {SECOND} was not healthy within 0.01 s: give it more with --start-timeout"):
        await kept.wait_healthy(0.01)
    kept._stands_by.set()
    waiting = asyncio.create_task(kept.wait_healthy(0.01))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    kept.healthy.set()
    await waiting


async def test_what_cannot_be_replaced_says_why(stage: Stage, lock: tuple[str, ...]) -> None:
    supervisor = stage.supervisor(second=lock)
    with pytest.raises(Failure, match="is being started or stopped"):
        await supervisor.replace(SECOND, stage.said.append)

    async def when_up() -> None:
        with pytest.raises(Failure, match=f"the {FIRST} has no journal.*restart 'citybus serve' without"):
            await supervisor.replace(FIRST, stage.said.append)
        first = asyncio.create_task(supervisor.replace(SECOND, stage.said.append))
        await asyncio.sleep(0)
        with pytest.raises(Failure, match="another upgrade is under way"):
            await supervisor.replace(SECOND, stage.said.append)
        await first
        await terminate()

    await supervisor.run(when_up)
    assert whereabouts(stage) == ["started 1", "left 1", "started 2", "ended 2"]


async def test_process_that_was_told_to_end_is_started_again_and_no_death(stage: Stage) -> None:
    async def when_up() -> None:
        for number in range(1, keeper.MAX_DEATHS + 2):
            os.kill([pid for pid, name, _ in stage.events() if name == FIRST][-1], signal.SIGUSR1)
            await until(lambda: sum(f"the {FIRST} is healthy" in line for line in stage.said) == number + 1)  # noqa: B023
        await terminate()

    await stage.supervisor().run(when_up)
    told = f"the {FIRST} was told to end: starting it again"
    assert stage.said.count(told) == keeper.MAX_DEATHS + 1
    stage.assert_nothing_runs()


async def test_final_exit_code_ends_everything_and_says_what_to_do(stage: Stage) -> None:
    fatal = stage.journal.with_name("fatal")

    async def when_up() -> None:
        fatal.touch()

    with pytest.raises(Failure) as failure:
        await stage.supervisor(second=("--code", "5", "--dies", str(fatal))).run(when_up)
    assert str(failure.value) == f"the {SECOND} ended (exit code 5): boom: set --frob to 3: see who took it"
    assert [name for _, name, what in stage.events() if what == "started"].count(SECOND) == 1
    stage.assert_nothing_runs()
