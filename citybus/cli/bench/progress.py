"""How far a load has come, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from citybus.bench.load import Record


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[Record], None]]:
    """A bar on stderr that moves with every record; one line at the beginning where that is no terminal."""
    if not sys.stderr.isatty():
        print(f"{what}: {total} requests", file=sys.stderr, flush=True)
        yield lambda record: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda record: bar.advance(task)
