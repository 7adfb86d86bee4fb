"""The policies that can be set: built-in, installed, or files in the policy folder."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import structlog

from common.errors import InvalidRequest, NotFound
from scheduler_svc import policy_parameters
from scheduler_svc.core.policy import Policy
from scheduler_svc.policies import BUILT_IN
from scheduler_svc.policy_files import BadPolicyFile, check, is_too_large, load, policy_files
from scheduler_svc.policy_trial import PASSED

ENTRY_POINTS = "citybus.policies"
TRIAL_S = 20.0
"""Longest a file may take to load and be tried, in seconds."""

_END_S = 5.0
_TAIL_BYTES = 2**16

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Shelved:
    """A policy class, and where it comes from."""

    policy: type[Policy]
    source: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a look into the policy folder gave: names of new code, and why files were refused."""

    loaded: tuple[str, ...]
    faults: dict[str, str]


class PolicyShelf:
    """Built-in policies, installed entry points `citybus.policies`, and what `reload` finds in `folder`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._fixed = {name: Shelved(policy, "built-in") for name, policy in BUILT_IN.items()} | _installed()
        self._files: dict[str, tuple[bytes, list[type[Policy]]]] = {}  # by file: digest, and what it defines
        self._seen: dict[str, bytes] = {}  # digests of all files, those that were refused too

    def entries(self) -> dict[str, Shelved]:
        """All of them, by name."""
        of_files = {
            policy.name: Shelved(policy, f"file {file}")
            for file, (_, policies) in self._files.items()
            for policy in policies
        }
        return dict(sorted((of_files | self._fixed).items()))

    def make(self, name: str, parameters: Mapping[str, str]) -> Policy:
        """A policy. Raises `NotFound` where there is none of that name, `InvalidRequest` for wrong parameters."""
        shelved = self.entries().get(name)
        if shelved is None:
            raise NotFound(f"there is no policy {name!r}; there are: {', '.join(self.entries())}")
        try:
            return shelved.policy(policy_parameters.parse(shelved.policy.Parameters, parameters))
        except (Exception, SystemExit) as error:  # sys.exit() in a policy must not end the service
            raise InvalidRequest(f"policy {name}: {error}") from error

    def renewed(self, live: Policy) -> Policy | None:
        """The live policy with its parameters in new code, where `reload` has brought that; else None."""
        shelved = self.entries().get(live.name)
        if shelved is None or shelved.policy is type(live):
            return None
        known = policy_parameters.show(shelved.policy.Parameters())
        kept = {key: text for key, text in policy_parameters.show(live.parameters).items() if key in known}
        return self.make(live.name, kept)

    def is_current(self) -> bool:
        """Whether the folder is as the last `reload` found it."""
        return self._folder is None or _digests(self._folder) == self._seen

    async def reload(self) -> Reloaded:
        """Read the folder anew. A file is tried in a process of its own first; one that fails changes nothing."""
        if self._folder is None:
            raise InvalidRequest("there is no policy folder: start the scheduler with --policy-folder")
        if not self._folder.is_dir():
            raise InvalidRequest(f"there is no policy folder {self._folder}: make it, or name another one")
        self._seen = _digests(self._folder)
        loaded: list[str] = []
        faults: dict[str, str] = {}
        for file in self._files.keys() - self._seen.keys():
            del self._files[file]
        for file, digest in self._seen.items():
            if file in self._files and self._files[file][0] == digest:
                continue
            try:
                self._files[file] = (digest, await self._tried(self._folder / file))
            except BadPolicyFile as error:
                faults[file] = str(error)
                log.warning("policy file refused", file=file, reason=str(error))
            else:
                loaded += [policy.name for policy in self._files[file][1]]
        return Reloaded(tuple(loaded), faults)

    async def _tried(self, path: Path) -> list[type[Policy]]:
        await _try(path)
        policies = await asyncio.to_thread(load, path)
        taken = {
            name for file, (_, them) in self._files.items() if file != path.name for name in (p.name for p in them)
        }
        for policy in policies:
            if policy.name in self._fixed or policy.name in taken:
                raise BadPolicyFile(f"there is another policy of the name {policy.name}")
        return policies


def _digests(folder: Path) -> dict[str, bytes]:
    """What tells the content of each policy file, by its name."""
    return {path.name: _digest(path) for path in policy_files(folder)}


def _digest(path: Path) -> bytes:
    """Of a file that is not read, its trial says why."""
    try:
        return b"" if is_too_large(path) else hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return b""


async def _try(path: Path) -> None:
    """Raises `BadPolicyFile` where the policies of a file fail their trial."""
    trial = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "scheduler_svc.policy_trial", str(path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        process_group=0,
    )
    try:
        async with asyncio.timeout(TRIAL_S):
            output = await _tail(trial)
    except TimeoutError:
        raise BadPolicyFile(f"it was not done with its trial within {TRIAL_S:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(trial.pid, signal.SIGKILL)  # and whatever it has started
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await _tail(trial)
    last = output.decode(errors="replace").strip().splitlines()[-1:]
    if trial.returncode != 0 or last != [PASSED]:
        raise BadPolicyFile(last[0][:500] if last else f"its trial ended with status {trial.returncode}")


async def _tail(trial: asyncio.subprocess.Process) -> bytes:
    """The end of what a process writes, once it has ended. It does not count as ended while that is not read."""
    tail = b""
    while trial.stdout is not None and (chunk := await trial.stdout.read(_TAIL_BYTES)):
        tail = (tail + chunk)[-_TAIL_BYTES:]
    await trial.wait()
    return tail


def _installed() -> dict[str, Shelved]:
    """Entry points; one that cannot be loaded is reported and left out."""
    found = {}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            policy = point.load()
            check(policy)
        except Exception as error:
            log.warning("installed policy refused", entry_point=point.name, reason=f"{type(error).__name__}: {error}")
            continue
        if policy.name not in BUILT_IN:
            found[policy.name] = Shelved(policy, f"package {point.dist.name if point.dist else point.module}")
    return found
