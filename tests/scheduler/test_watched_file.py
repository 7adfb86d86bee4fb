"""Files that take effect when they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import StartupError
from scheduler_svc.watched_file import WatchedFile


def parse(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("expected a number")
    return int(text)


def test_a_change_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    watched = WatchedFile(path, parse)
    assert watched.value() == 1
    with path.open("a") as file:
        file.write("7")
    assert watched.value() == 17
    replacement = tmp_path / "new"
    replacement.write_text("42")  # as long as the one before
    replacement.replace(path)
    assert watched.value() == 42


def test_what_is_no_good_or_gone_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    watched = WatchedFile(path, parse)
    for content in (b"nonsense", b"\xff\xff"):
        path.write_bytes(content)
        assert watched.value() == watched.value() == 1
    path.unlink()
    assert watched.value() == watched.value() == 1
    path.write_text("2")
    assert watched.value() == 2


def test_a_file_must_be_good_at_first(tmp_path: Path) -> None:
    path = tmp_path / "number"
    with pytest.raises(StartupError, match=f"{path} cannot be used: No such file"):
        WatchedFile(path, parse)
    path.write_text("nonsense")
    with pytest.raises(StartupError, match=f"{path} cannot be used: expected a number"):
        WatchedFile(path, parse)
