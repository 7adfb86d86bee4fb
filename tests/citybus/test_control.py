"""The socket by which `citybus upgrade` reaches `citybus serve`."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import pytest

from citybus.failure import Failure
from citybus.supervisor.child import Say
from citybus.supervisor.control import ask_to_upgrade, control_path, controlled


async def succeed(tell: Say) -> None:
    tell("half of it")
    await asyncio.sleep(0)
    tell("all of it")


async def fail(tell: Say) -> None:
    tell("half of it")
    raise Failure("no such flag")


async def ask(path: Path) -> list[str]:
    heard: list[str] = []
    await asyncio.to_thread(ask_to_upgrade, path, heard.append)
    return heard


async def test_news_come_before_the_verdict(tmp_path: Path) -> None:
    path, heard, said = tmp_path / "folder/socket", list[str](), list[str]()
    async with controlled(path, succeed, said.append):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await ask(path) == ["half of it", "all of it"]
    async with controlled(path, fail, said.append):
        with pytest.raises(Failure, match="no such flag"):
            await asyncio.to_thread(ask_to_upgrade, path, heard.append)
    assert heard == ["half of it"]
    assert not path.exists()
    assert said == []


async def test_process_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    async def starve(tell: Say) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    async with controlled(tmp_path / "socket", starve, print):
        with pytest.raises(Failure, match="Resource temporarily unavailable"):
            await ask(tmp_path / "socket")


async def test_server_that_ends_in_the_middle_is_no_success(tmp_path: Path) -> None:
    async def breaks(tell: Say) -> None:
        raise asyncio.CancelledError

    async with controlled(tmp_path / "socket", breaks, print):
        with pytest.raises(Failure, match="ended before it said how the upgrade went"):
            await ask(tmp_path / "socket")


async def test_stale_socket_is_no_server_and_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(Failure, match=r"no 'citybus serve' of this user can be reached at .* \(Connection refused\)"):
        await ask(path)
    async with controlled(path, succeed, print):
        assert await ask(path) == ["half of it", "all of it"]


async def test_sockets_of_killed_servers_go_and_those_of_others_stay(tmp_path: Path) -> None:
    left, used, own = (tmp_path / f"serve-{port}.socket" for port in range(3))
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))
    async with controlled(used, succeed, print), controlled(own, succeed, print):
        assert sorted(tmp_path.iterdir()) == [used, own]
        assert await ask(used) == await ask(own) == ["half of it", "all of it"]
    assert list(tmp_path.iterdir()) == []


async def test_second_server_leaves_the_socket_of_the_first_alone(tmp_path: Path) -> None:
    path, said = tmp_path / "socket", list[str]()
    async with controlled(path, succeed, said.append):
        async with controlled(path, fail, said.append):
            assert await ask(path) == ["half of it", "all of it"]
        assert await ask(path) == ["half of it", "all of it"]
    assert said == [
        f"'citybus upgrade' will not reach this server: {path} cannot be opened (another 'citybus serve' answers there)"
    ]


async def test_path_that_no_socket_can_have_is_said_and_nothing_more(tmp_path: Path) -> None:
    said: list[str] = []
    async with controlled(tmp_path / ("x" * 120), succeed, said.append):
        assert len(said) == 1
        assert "will not reach this server" in said[0]


def test_one_socket_for_each_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert control_path("localhost:7") == control_path("[::]:7") == Path("/state/citybus/serve-7.socket")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert control_path("a:7") == Path.home() / ".local/state/citybus/serve-7.socket"
