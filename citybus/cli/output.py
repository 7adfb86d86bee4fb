"""How commands write: answers on stdout, everything about them on stderr."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Self, TextIO

from citybus.messages import Finish

_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def write_answer(text: str, out: TextIO | None = None) -> None:
    """Write a part of an answer at once. On a terminal, characters that would control it are replaced."""
    out = out or sys.stdout
    out.write(text.translate(_CONTROLS) if out.isatty() else text)
    out.flush()


def describe(finish: Finish) -> str:
    """How an answer ended, in one line."""
    usage, timings = finish.usage, finish.timings
    seconds = (timings.total_ms - timings.first_token_ms) / 1000
    rate = (
        f", {(usage.completion_tokens - 1) / seconds:.1f} tokens/s" if usage.completion_tokens > 1 and seconds else ""
    )
    return (
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), {usage.completion_tokens} generated, "
        f"first after {timings.first_token_ms / 1000:.2f} s{rate}, ended by {finish.reason}"
    )


def drop_output() -> None:
    """Nobody reads standard output any more: what was and will be written to it goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Progress:
    """Says on stderr what is being done: one line that moves, on a terminal; elsewhere one line a step."""

    def __init__(self) -> None:
        self._status = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.status import Status

            self._status = Status("", console=Console(stderr=True))

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, text: str) -> None:
        """Say that `text` is being done now."""
        if self._status is not None:
            self._status.update(text)
        else:
            print(text, file=sys.stderr, flush=True)
