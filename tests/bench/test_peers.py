"""Measuring side by side: who is first takes turns, and a peer that goes wrong is noticed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.peers.__main__ import rounds_of
from bench.peers.peer import Peer, Speed
from tests.harness import wait_until

FAKE = """#!{python}
import json, sys
print(json.dumps({{"ready": True}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({{"seconds": 0.5, "output_tokens": {tokens}}}), flush=True)
"""


def fake_python(folder: Path, tokens: str) -> Path:
    """Runs no peer, whatever it is told to run, and says that it gave so many tokens."""
    path = folder / "python"
    path.write_text(FAKE.format(python=sys.executable, tokens=tokens), encoding="utf-8")
    path.chmod(0o755)
    return path


def test_who_is_first_takes_turns() -> None:
    order: list[str] = []

    def measured(name: str, speed: float) -> float:
        order.append(name)
        return speed

    pairs = rounds_of(lambda: measured("ours", 2.0), lambda: measured("theirs", 1.0), 3)
    assert pairs == [(2.0, 1.0)] * 3
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_a_peer_answers_and_its_speed_is_its_own(tmp_path: Path) -> None:
    with Peer("any", tmp_path, fake_python(tmp_path, 'sum(asked["output_tokens"])'), tmp_path / "log") as peer:
        assert peer.answer([[1, 2], [3]], [4, 6]) == Speed(0.5, 10)
    assert Speed(0.5, 10).tokens_per_s == 20.0


def test_the_processes_of_a_peer_end_with_it(tmp_path: Path) -> None:
    child = tmp_path / "child"
    python = fake_python(tmp_path, "1")
    start = f"import subprocess; open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
    python.write_text(python.read_text().replace("import json, sys\n", "import json, sys\n" + start), encoding="utf-8")
    with Peer("any", tmp_path, python, tmp_path / "log"):
        pid = int(child.read_text())
        os.kill(pid, 0)
    wait_until(lambda: not alive(pid), "its child has ended", 10)


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and that nobody has asked for does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_peer_that_gives_too_few_tokens_does_not_count(tmp_path: Path) -> None:
    with (
        Peer("any", tmp_path, fake_python(tmp_path, "3"), tmp_path / "log") as peer,
        pytest.raises(RuntimeError, match="the peer gave 3 tokens, 10 were asked for"),
    ):
        peer.answer([[1, 2], [3]], [4, 6])


def test_a_peer_that_ends_says_where_its_words_are(tmp_path: Path) -> None:
    with (
        Peer("any", tmp_path, fake_python(tmp_path, "sys.exit(3)"), tmp_path / "log") as peer,
        pytest.raises(RuntimeError, match=r"the peer has ended: .*log says why"),
    ):
        peer.answer([[1]], [4])
