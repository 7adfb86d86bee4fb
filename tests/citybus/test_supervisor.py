"""The supervisor over services that misbehave on demand."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from citybus.failure import Failure
from citybus.supervisor import keeper
from citybus.supervisor.child import child_environment
from citybus.supervisor.log_lines import LogLine, parse
from tests.citybus.stage import FIRST, SECOND, Stage, nothing, terminate, until


async def test_signal_drains_the_last_service_first(stage: Stage) -> None:
    await stage.supervisor().run(terminate)
    assert sorted(name for _, name, what in stage.events() if what == "started") == [FIRST, SECOND]
    assert [name for _, name, what in stage.events() if what == "ended"] == [SECOND, FIRST]
    assert any(line.startswith(f"the {FIRST} is healthy after ") for line in stage.said)
    assert stage.said[-1] == "draining: requests that run are finished; Ctrl-C again ends them at once"
    stage.assert_nothing_runs()


async def test_warnings_of_the_log_are_shown(stage: Stage) -> None:
    async def when_up() -> None:
        await until(lambda: sum(": odd port=" in line for line in stage.said) == 2)
        await terminate()

    await stage.supervisor().run(when_up)
    assert f"{FIRST}: odd port={stage.ports[FIRST]}" in stage.said


async def test_service_that_dies_at_its_start_ends_everything(stage: Stage) -> None:
    with pytest.raises(Failure) as failure:
        await stage.supervisor(first=("--sick", "--dies", "/")).run(nothing)
    assert str(failure.value) == f"the {FIRST} ended while it started (exit code 3): boom: set --frob to 3"
    assert f"{FIRST}: first line of the trace" in stage.said
    assert not any("boom" in line for line in stage.said)
    stage.assert_nothing_runs()


async def test_service_that_is_killed_later_is_started_again(stage: Stage) -> None:
    async def when_up() -> None:
        os.kill(next(pid for pid, name, _ in stage.events() if name == FIRST), signal.SIGKILL)
        await until(lambda: sum(line.startswith(f"the {FIRST} is healthy") for line in stage.said) == 2)
        await terminate()

    await stage.supervisor().run(when_up)
    assert f"the {FIRST} ended (killed by SIGKILL): odd port={stage.ports[FIRST]}: starting it again" in stage.said
    assert [name for _, name, what in stage.events() if what == "started"].count(SECOND) == 1
    stage.assert_nothing_runs()


async def test_service_that_dies_again_and_again_ends_everything(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FIRST_BACKOFF_S", 0.01)
    fatal = stage.journal.with_name("fatal")

    async def when_up() -> None:
        fatal.touch()

    with pytest.raises(Failure, match=f"the {SECOND} ended .*3 times within 60 s: boom: set --frob to 3"):
        await stage.supervisor(second=("--dies", str(fatal))).run(when_up)
    assert [name for _, name, what in stage.events() if what == "started"].count(SECOND) == 3
    stage.assert_nothing_runs()


async def test_service_that_never_turns_healthy_ends_everything(stage: Stage) -> None:
    with pytest.raises(Failure, match=f"the {FIRST} was not healthy within 1 s"):
        await stage.supervisor(first=("--sick",), start_s=1.0).run(nothing)
    stage.assert_nothing_runs()


async def test_service_that_ignores_the_end_is_killed_after_its_grace(stage: Stage) -> None:
    await stage.supervisor(second=("--deaf",), grace_s=0.2).run(terminate)
    assert f"the {SECOND} did not end within 0.2 s: killing it" in stage.said
    stage.assert_nothing_runs()


async def test_second_signal_kills_at_once(stage: Stage) -> None:
    async def when_up() -> None:
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGINT)
        await terminate()

    started = time.monotonic()
    await stage.supervisor(second=("--deaf",), grace_s=300.0).run(when_up)
    assert time.monotonic() - started < 200
    stage.assert_nothing_runs()


async def test_failed_proof_ends_everything(stage: Stage) -> None:
    async def fail() -> None:
        raise Failure("no answer")

    with pytest.raises(Failure, match="no answer"):
        await stage.supervisor().run(fail)
    assert [name for _, name, what in stage.events() if what == "ended"] == [SECOND, FIRST]
    stage.assert_nothing_runs()


def test_log_lines_are_made_readable() -> None:
    line = '{"event": "slow step", "level": "warning", "service": "executor", "timestamp": "now", "ms": 7}'
    assert parse(line) == LogLine("warning", "slow step ms=7", "slow step", {"ms": 7})
    assert not parse('{"event": "serving", "level": "info"}').matters
    for plain in ("Traceback (most recent call last):", "17", '{"level": "info"}', "[1, 2"):
        assert parse(plain) == LogLine(None, plain)
        assert parse(plain).matters


def test_a_service_does_not_get_the_secrets_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CITYBUS_API_KEY", "CITYBUS_ADMIN_TOKEN"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CITYBUS_SCHEDULER_POLICY", "priority")
    environment = child_environment()
    assert environment["CITYBUS_SCHEDULER_POLICY"] == "priority"
    assert environment.keys() >= {"PATH", "GRPC_VERBOSITY"}
    assert "secret" not in environment.values()
