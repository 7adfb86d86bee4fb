"""The contract: stubs made from it are current, and it is written as buf's rules want, every field commented."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PROTOS = Path(__file__).resolve().parent.parent / "protos"
BUF = Path(sysconfig.get_path("scripts")) / "buf"


def run(*command: str | Path) -> tuple[int, str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the protos, and of the stubs next to them, that may be spoilt."""
    shutil.copytree(PROTOS, tmp_path / "protos")
    shutil.copytree(PROTOS.parent / "citybus", tmp_path / "citybus")
    return tmp_path / "protos"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_stubs_are_current() -> None:
    assert run(sys.executable, PROTOS / "generate.py", "--check") == (0, "")


def test_a_changed_proto_makes_its_stubs_stale_until_they_are_made_again(copy: Path) -> None:
    change(copy / "citybus/v1/generation.proto", "uint32 num_tokens = 1;", "uint64 num_tokens = 1;")
    code, said = run(sys.executable, copy / "generate.py", "--check")
    assert code == 1
    assert "citybus/v1/generation_pb2.py is stale: run 'make protos' and commit the result\n" in said
    assert "admin" not in said
    assert run(sys.executable, copy / "generate.py") == (0, "")
    assert run(sys.executable, copy / "generate.py", "--check") == (0, "")


def test_a_stub_that_no_proto_makes_is_stale(copy: Path) -> None:
    left_over = copy.parent / "citybus" / "v1" / "removed_pb2.py"
    left_over.write_text("")
    code, said = run(sys.executable, copy / "generate.py", "--check")
    assert (code, said) == (1, "citybus/v1/removed_pb2.py is stale: run 'make protos' and commit the result\n")
    assert run(sys.executable, copy / "generate.py") == (0, "")
    assert not left_over.exists()


def test_a_missing_stub_is_stale(copy: Path) -> None:
    (copy.parent / "citybus" / "admin" / "v1" / "admin_pb2_grpc.pyi").unlink()
    code, said = run(sys.executable, copy / "generate.py", "--check")
    assert (code, said) == (
        1,
        "citybus/admin/v1/admin_pb2_grpc.pyi is stale: run 'make protos' and commit the result\n",
    )


def test_a_proto_that_does_not_parse_is_named(copy: Path) -> None:
    change(copy / "citybus/v1/generation.proto", "uint32 num_tokens = 1;", "uint32 num_tokens = ;")
    code, said = run(sys.executable, copy / "generate.py", "--check")
    assert code == 1
    assert "citybus/v1/generation.proto" in said
    assert "protoc failed" in said


def test_buf_has_no_complaint() -> None:
    assert run(BUF, "lint", PROTOS) == (0, "")
    assert run(BUF, "format", "--diff", "--exit-code", PROTOS) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("  // Tokens it takes.\n", "", 'Field "num_tokens" should have a non-empty comment'),
        ("FINISH_REASON_UNSPECIFIED = 0", "FINISH_REASON_NONE = 0", "should be suffixed with"),
    ],
)
def test_buf_complains_of_a_spoilt_proto(copy: Path, old: str, new: str, complaint: str) -> None:
    change(copy / "citybus/v1/generation.proto", old, new)
    code, said = run(BUF, "lint", copy)
    assert code != 0
    assert complaint in said
