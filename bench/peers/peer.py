"""A server that is measured: another one in a child process, stopped while it is not its turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from bench.peers.environments import Environment
from bench.processes import ROOT


@dataclass(frozen=True, slots=True)
class Speed:
    """So many tokens in so many seconds."""

    seconds: float
    output_tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


class Server(Protocol):
    """What is measured, ours and the others alike."""

    first_token_s: float
    """From the start of its process to its first token."""

    def answer(self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int]) -> Speed:
        """Answer all prompts, sent at once, with exactly so many tokens each."""


class Peer:
    """A peer with the model loaded, from entering to leaving; it runs in process, and has no wire to pay for."""

    def __init__(self, name: str, environment: Environment, log: Path) -> None:
        self._command = [str(environment.python), "-m", "bench.peers.worker", name, str(environment.model)]
        self._variables = environment.variables
        self._log = log.open("ab")
        self.first_token_s = 0.0

    def __enter__(self) -> Self:
        started = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, **self._variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        try:
            self._heard()
            self.answer([[1]], [1])
            self.first_token_s = time.perf_counter() - started
            self._tell(signal.SIGSTOP)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def answer(self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int]) -> Speed:
        """As `Server.answer`. Raises RuntimeError where the peer has ended or gave too few tokens."""
        assert self._process.stdin is not None
        asked = {"prompts": [list(prompt) for prompt in prompts], "output_tokens": list(output_tokens)}
        self._tell(signal.SIGCONT)
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        heard = self._heard()
        self._tell(signal.SIGSTOP)
        speed = Speed(heard["seconds"], heard["output_tokens"])
        if speed.output_tokens != sum(output_tokens):
            raise RuntimeError(f"the peer gave {speed.output_tokens} tokens, {sum(output_tokens)} were asked for")
        return speed

    def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer has ended: {self._log.name} says why")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def _tell(self, number: signal.Signals) -> None:
        """A peer has processes and threads of its own, some of which turn while they wait for work."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _end(self) -> None:
        self._tell(signal.SIGKILL)
        self._process.communicate()
        self._log.close()
