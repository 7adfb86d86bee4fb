"""Measuring side by side: who is first takes turns, who waits is stopped, and a peer that goes wrong is noticed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.peers.__main__ import compared, measured
from bench.peers.environments import Environment
from bench.peers.ours import Ours
from bench.peers.peer import Peer, Speed
from bench.peers.workloads import at_once, single
from citybus.bench.workload import Lengths
from tests.harness import wait_until

FAKE = """#!{python}
import json, sys
print(json.dumps({{"ready": True}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({{"seconds": 0.5, "output_tokens": {tokens}}}), flush=True)
"""


def after_the_first(tokens: str) -> str:
    """The answer with which a peer shows that it has begun is as it should be, and later ones are not."""
    return f'1 if asked["output_tokens"] == [1] else {tokens}'


def environment(python: Path) -> Environment:
    return Environment(python, python.parent, {})


def fake_python(folder: Path, tokens: str) -> Path:
    """Runs no peer, whatever it is told to run, and says that it gave so many tokens."""
    path = folder / "python"
    path.write_text(FAKE.format(python=sys.executable, tokens=tokens), encoding="utf-8")
    path.chmod(0o755)
    return path


class Paced:
    """Gives tokens at a pace, the first one later, and notes that it was asked."""

    first_token_s = 0.0

    def __init__(self, name: str, order: list[str], token_s: float) -> None:
        self._name, self._order, self._token_s = name, order, token_s

    def answer(self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int]) -> Speed:
        self._order.append(self._name)
        return Speed(0.5 + self._token_s * sum(output_tokens), sum(output_tokens))


def test_who_is_first_takes_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    servers = {name: Paced(name, order, 0.01) for name in ("citybus", "one", "two")}
    workload = at_once("some", 2, Lengths(3, 3), Lengths(25, 25), 100, 0)
    figures = measured(servers, workload, 2)
    assert figures == {name: [50.0, 50.0] for name in servers}
    assert order == ["two", "citybus", "one", "citybus", "one", "two", "one", "two", "citybus"]


def test_the_time_between_tokens_leaves_the_first_token_out() -> None:
    assert single(4, 100, 0).measure(Paced("any", [], 0.02)) == pytest.approx(20.0)


def test_a_ratio_over_one_is_in_our_favour() -> None:
    faster = {"citybus": [300.0, 200.0, 400.0], "peer": [200.0, 200.0, 200.0]}
    (report,) = compared(at_once("some", 2, Lengths(3, 3), Lengths(2, 2), 100, 0), faster)
    assert report["times better"] == {"median": 1.5, "least": 1.0, "most": 2.0}
    (report,) = compared(single(4, 100, 0), {"citybus": [10.0], "peer": [20.0]})
    assert report["times better"] == {"median": 2.0, "least": 2.0, "most": 2.0}


def test_a_peer_answers_and_its_speed_is_its_own(tmp_path: Path) -> None:
    with Peer("any", environment(fake_python(tmp_path, 'sum(asked["output_tokens"])')), tmp_path / "log") as peer:
        assert peer.answer([[1, 2], [3]], [4, 6]) == Speed(0.5, 10)
    assert Speed(0.5, 10).tokens_per_s == 20.0


def test_a_peer_is_stopped_while_it_is_not_its_turn(tmp_path: Path) -> None:
    python = fake_python(tmp_path, 'sum(asked["output_tokens"])')
    start = f"import os; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    python.write_text(python.read_text().replace("import json, sys\n", "import json, sys\n" + start), encoding="utf-8")
    with Peer("any", environment(python), tmp_path / "log") as peer:
        pid = int((tmp_path / "pid").read_text())
        wait_until(lambda: state(pid) == "T", "it is stopped", 10)
        assert peer.answer([[1]], [3]).output_tokens == 3
        wait_until(lambda: state(pid) == "T", "it is stopped again", 10)


async def test_an_answer_that_ours_breaks_off_is_noticed_at_once(tmp_path: Path) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    ours = Ours(tmp_path, 1, tmp_path / "log")
    async with await asyncio.start_server(break_off, "127.0.0.1", 0) as server:
        ours.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(RuntimeError, match=f"our server broke off an answer: {tmp_path / 'log'} says why"):
            await asyncio.wait_for(ours._answer([[1]] * 65, [1] * 65), 10)
    ours._log.close()
    ours._folder.cleanup()


def test_the_processes_of_a_peer_end_with_it(tmp_path: Path) -> None:
    child = tmp_path / "child"
    python = fake_python(tmp_path, "1")
    start = f"import subprocess; open({str(child)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
    python.write_text(python.read_text().replace("import json, sys\n", "import json, sys\n" + start), encoding="utf-8")
    with Peer("any", environment(python), tmp_path / "log"):
        pid = int(child.read_text())
        os.kill(pid, 0)
    wait_until(lambda: not alive(pid), "its child has ended", 10)


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and that nobody has asked for does not."""
    return state(pid) not in ("Z", "")


def state(pid: int) -> str:
    """The letter of proc_pid_stat(5); empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def test_a_peer_that_gives_too_few_tokens_does_not_count(tmp_path: Path) -> None:
    with (
        Peer("any", environment(fake_python(tmp_path, after_the_first("3"))), tmp_path / "log") as peer,
        pytest.raises(RuntimeError, match="the peer gave 3 tokens, 10 were asked for"),
    ):
        peer.answer([[1, 2], [3]], [4, 6])


def test_a_peer_that_ends_says_where_its_words_are(tmp_path: Path) -> None:
    with (
        Peer("any", environment(fake_python(tmp_path, after_the_first("sys.exit(3)"))), tmp_path / "log") as peer,
        pytest.raises(RuntimeError, match=r"the peer has ended: .*log says why"),
    ):
        peer.answer([[1]], [4])
