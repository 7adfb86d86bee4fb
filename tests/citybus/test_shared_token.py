"""The token that an executor and its scheduler share."""

from __future__ import annotations

from pathlib import Path

import pytest

from citybus.failure import Failure
from citybus.supervisor.shared_token import shared_token


def test_it_is_there_while_it_is_used_and_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "state" / "executor-1.token"
    with shared_token(path):
        first = path.read_text()
        assert (len(first.strip()), path.stat().st_mode & 0o777) == (43, 0o600)
        assert list(path.parent.iterdir()) == [path]
    assert list(path.parent.iterdir()) == []
    with shared_token(path):
        assert path.read_text() != first


def test_those_of_killed_servers_go_and_those_in_use_stay(tmp_path: Path) -> None:
    left, used, own = (tmp_path / f"executor-{port}.token" for port in range(3))
    left.write_text("left\n")
    own.write_text("left\n")
    with shared_token(used):
        token = used.read_text()
        with shared_token(own):
            assert not left.exists()
            assert own.read_text() != "left\n"
            assert used.read_text() == token
        assert used.exists()


def test_it_says_where_there_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with (
        pytest.raises(Failure, match=r"the executor's token cannot be written to .* XDG_STATE_HOME"),
        shared_token(tmp_path / "state" / "executor-1.token"),
    ):
        raise AssertionError
