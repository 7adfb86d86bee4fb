"""Secrets in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.errors import StartupError
from common.secret_file import read_or_make_secret, read_secret


def test_one_is_made_for_this_user_alone_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "run" / "token"
    made = read_or_make_secret(path, "the token")
    assert len(made) >= 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_or_make_secret(path, "the token") == read_secret(path, "the token") == made
    assert list(path.parent.iterdir()) == [path]
    assert read_or_make_secret(tmp_path / "other", "the token") != made


@pytest.mark.parametrize("content", [b"", b"\n \n", b"two\nlines", "schlüssel".encode(), b"\xff\xfe"])
def test_a_file_without_a_secret_is_named_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=f"{path}") as caught:
        read_or_make_secret(path, "the token")
    assert "lines" not in str(caught.value)
    assert "schl" not in str(caught.value)


def test_a_file_that_cannot_be_read_or_made(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"the token cannot be read from .*: No such file"):
        read_secret(tmp_path / "absent", "the token")
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="the token cannot be written to"):
        read_or_make_secret(tmp_path / "file" / "token", "the token")
