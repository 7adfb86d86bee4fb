"""Policies by name: built-in, from files, with parameters as text."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from common.errors import InvalidRequest, NotFound
from scheduler_svc import policy_parameters, policy_shelf
from scheduler_svc.core.policy import Policy
from scheduler_svc.policies import BUILT_IN
from scheduler_svc.policy_shelf import PolicyShelf
from scheduler_svc.policy_trial import fault_of

YOUNGEST = """
from dataclasses import dataclass
from scheduler_svc.core.policy import Policy

@dataclass(frozen=True)
class Parameters:
    eldest_after_s: float = 20.0

class Youngest(Policy):
    '''The youngest boards first.'''

    name = "youngest"
    Parameters = Parameters
    version = 1

    def admission_order(self, waiting, step, now):
        patient = [view for view in waiting if now - view.waiting_since > self.parameters.eldest_after_s]
        return patient or list(waiting)[::-1]
"""
PLAIN = "from scheduler_svc.core.policy import Policy\n\nclass Mine(Policy):\n    name = 'mine'\n"


@pytest.fixture(autouse=True)
def caches_compiled_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python does by itself."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_the_built_in_policies_pass_the_trial_and_can_be_written(name: str) -> None:
    shelf = PolicyShelf()
    policy_parameters.check(BUILT_IN[name].Parameters)
    policy = shelf.make(name, policy_parameters.show(BUILT_IN[name].Parameters()))
    assert policy.parameters == BUILT_IN[name].Parameters()
    assert fault_of(policy, None) is None
    assert shelf.entries()[name].source == "built-in"


@dataclass(frozen=True)
class AllKinds:
    number: int = 1
    share: float = 0.5
    on: bool = False
    text: str = "a"
    weights: Mapping[str, float] = field(default_factory=dict)


def test_parameters_are_written_as_they_are_read() -> None:
    given = {"number": "7", "share": "0.25", "on": "true", "text": "b", "weights": "a=2,b=0.5"}
    made = policy_parameters.parse(AllKinds, given)
    assert made == AllKinds(7, 0.25, True, "b", {"a": 2.0, "b": 0.5})
    assert policy_parameters.show(made) == given
    policy_parameters.check(AllKinds)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"number": "x"}, "number: expected an integer, got 'x'"),
        ({"share": ""}, "share: expected a number"),
        ({"on": "maybe"}, "on: expected true or false"),
        ({"weights": "a"}, "weights: expected numbers by name"),
        ({"size": "1"}, "no parameter 'size'; there are: number, on, share, text, weights"),
    ],
)
def test_a_parameter_that_is_wrong_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policy_parameters.parse(AllKinds, given)


def test_what_cannot_be_made_is_refused() -> None:
    shelf = PolicyShelf()
    with pytest.raises(NotFound, match="no policy 'fcsf'; there are: contiguous, deadline"):
        shelf.make("fcsf", {})
    with pytest.raises(InvalidRequest, match="policy fair_share: weights must be more than 0"):
        shelf.make("fair_share", {"weights": "a=-1"})


async def test_without_a_folder_there_is_nothing_to_reload() -> None:
    with pytest.raises(InvalidRequest, match="--policy-folder"):
        await PolicyShelf().reload()


async def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nowhere: make it, or name another one"):
        await PolicyShelf(tmp_path / "nowhere").reload()


async def test_a_file_is_loaded_and_changed_and_taken_away(tmp_path: Path) -> None:
    shelf, file = PolicyShelf(tmp_path), tmp_path / "youngest.py"
    file.write_text(YOUNGEST)
    (tmp_path / "_private.py").write_text("raise RuntimeError")
    found = await shelf.reload()
    assert (found.loaded, found.faults) == (("youngest",), {})
    assert shelf.entries()["youngest"].source == "file youngest.py"
    live: Any = shelf.make("youngest", {"eldest_after_s": "5"})
    assert shelf.renewed(live) is None
    assert (await shelf.reload()).loaded == (), "nothing has changed"
    file.write_text(YOUNGEST.replace("version = 1", "version = 2"))
    assert (await shelf.reload()).loaded == ("youngest",)
    renewed: Any = shelf.renewed(live)
    assert (live.version, renewed.version, renewed.parameters.eldest_after_s) == (1, 2, 5.0)
    file.unlink()
    await shelf.reload()
    assert "youngest" not in shelf.entries()


async def test_a_shelf_is_current_until_a_file_comes_changes_or_goes(tmp_path: Path) -> None:
    shelf, file = PolicyShelf(tmp_path), tmp_path / "broken.py"
    assert PolicyShelf(None).is_current()
    assert shelf.is_current()
    for content in ("1 / 0", "2 / 0"):  # refused, and seen all the same
        file.write_text(content)
        assert not shelf.is_current()
        await shelf.reload()
        assert shelf.is_current()
    file.unlink()
    assert not shelf.is_current()


BAD = {
    "syntax": ("def", "SyntaxError"),
    "raises": ("raise RuntimeError('no')", "RuntimeError: no"),
    "ends": ("import os\nos._exit(0)", "ended with status 0"),
    "exits": ("raise SystemExit(0)", "SystemExit"),
    "none": ("x = 1", "defines no class"),
    "name": (PLAIN.replace("'mine'", "'Not A Name'"), "needs a name of its own"),
    "nameless": (PLAIN.replace("name = 'mine'", "pass"), "needs a name of its own"),
    "built_in": (PLAIN.replace("'mine'", "'fcfs'"), "another policy of the name fcfs"),
    "parameters": (PLAIN + "    Parameters = int\n", "frozen dataclass"),
    "nonsense": (PLAIN + "    def admission_order(self, waiting, step, now):\n        return [1]\n", "does not wait"),
    "state": (PLAIN + "    def export_state(self):\n        raise ValueError('x')\n", "export_state"),
    "loops": (PLAIN + "    def token_budget(self, step, now):\n        while True: pass\n", "did not end within"),
    "large": ("#" * 2**20 + "\n", "larger than 1048576 bytes"),
    "slow": (PLAIN + "    def charge(self, charges, now):\n        sum(range(10**8))\n", "charge: "),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_file_that_is_bad_is_refused_and_what_was_there_stays(tmp_path: Path, kind: str) -> None:
    source, reason = BAD[kind]
    shelf, file = PolicyShelf(tmp_path), tmp_path / "mine.py"
    file.write_text(PLAIN)
    await shelf.reload()
    file.write_text(source)
    found = await shelf.reload()
    assert found.loaded == ()
    assert list(found.faults) == ["mine.py"]
    (message,) = found.faults.values()
    assert reason in message
    assert issubclass(shelf.entries()["mine"].policy, Policy)


async def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.py", tmp_path / "policies"
    folder.mkdir()
    outside.write_text(PLAIN)
    (folder / "mine.py").symlink_to(outside)
    assert (await PolicyShelf(folder).reload()).loaded == ()


async def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(f"{path} is not ours")

    (tmp_path / "mine.py").write_bytes(b"\xff")  # no text: what the trial says of it
    monkeypatch.setattr(Path, "read_bytes", denied)
    shelf = PolicyShelf(tmp_path)
    assert list((await shelf.reload()).faults) == ["mine.py"]
    assert shelf.is_current()


async def test_a_file_that_prints_for_ever_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_shelf, "TRIAL_S", 1.0)
    (tmp_path / "prints.py").write_text("while True: print('x' * 10**6)")
    async with asyncio.timeout(30):
        found = await PolicyShelf(tmp_path).reload()
    assert found.faults == {"prints.py": "it was not done with its trial within 1 s"}


def test_a_trial_ends_with_who_wants_to_know(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text("while True: pass")
    command = [sys.executable, "-m", "scheduler_svc.policy_trial", str(tmp_path / "loops.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as trial:
        assert trial.stdin is not None
        trial.stdin.close()
        try:
            assert trial.wait(timeout=30) == 1
        finally:
            trial.kill()
