"""Which model a folder has, and which two cannot work together."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from common.model_identity import ModelIdentity, read_identity

A, B = bytes(range(32)), bytes(range(1, 33))


def test_the_digest_is_of_the_bytes_of_the_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(b"{ }\r\n")
    identity = ModelIdentity("tiny", hashlib.sha256(b"{ }\r\n").digest())
    assert read_identity(folder) == identity
    (folder / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to(folder)
    assert read_identity(tmp_path / "link") == identity


def test_a_folder_without_a_tokenizer_has_no_digest(tmp_path: Path) -> None:
    assert read_identity(tmp_path) == ModelIdentity(tmp_path.name, b"")
    (tmp_path / "tokenizer.json").mkdir()
    assert read_identity(tmp_path) == ModelIdentity(tmp_path.name, b"")


@pytest.mark.parametrize(
    ("ours", "theirs", "contradict"),
    [(A, A, False), (A, B, True), (A, b"", False), (b"", A, False), (b"", b"", False)],
    ids=["same", "different", "theirs unknown", "ours unknown", "both unknown"],
)
def test_tokenizers_contradict_where_both_are_known_and_differ(ours: bytes, theirs: bytes, contradict: bool) -> None:
    for name in ("ours", "theirs"):
        assert ModelIdentity("ours", ours).contradicts(ModelIdentity(name, theirs)) is contradict


def test_it_is_said_with_a_short_digest() -> None:
    assert str(ModelIdentity("tiny", A)) == "tiny (tokenizer 000102030405)"
    assert str(ModelIdentity("tiny", b"")) == "tiny (tokenizer unknown)"
