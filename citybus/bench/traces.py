"""Traces and lists of lengths from files: who sent how much, and when."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from citybus.bench.workload import Call


class BadTrace(ValueError):
    """The file is none of the known formats, or a line of it is wrong."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of a file in order of time; `timed` says whether the file has times (else all are 0)."""

    calls: tuple[Call, ...]
    timed: bool


@dataclass(frozen=True, slots=True)
class _Format:
    columns: tuple[str, ...]
    timed: bool
    read: Callable[[dict[str, Any]], Call]


def _azure(row: dict[str, Any]) -> Call:
    stamp = datetime.fromisoformat(row["TIMESTAMP"][:26])
    return Call(stamp.timestamp(), int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _mooncake(row: dict[str, Any]) -> Call:
    prefix = tuple(row["hash_ids"])
    return Call(row["timestamp"] / 1000, row["input_length"], row["output_length"], prefix=prefix)


def _arena(row: dict[str, Any]) -> Call:
    return Call(row["t_s"], row["input_tokens"], row["output_tokens"], tenant=str(row["tenant"]))


def _lengths(row: dict[str, Any]) -> Call:
    return Call(0.0, int(row["num_prefill_tokens"]), int(row["num_decode_tokens"]))


_FORMATS = (
    _Format(("TIMESTAMP", "ContextTokens", "GeneratedTokens"), True, _azure),
    _Format(("timestamp", "input_length", "output_length", "hash_ids"), True, _mooncake),
    _Format(("t_s", "tenant", "input_tokens", "output_tokens"), True, _arena),
    _Format(("num_prefill_tokens", "num_decode_tokens"), False, _lengths),
)


def read(path: Path) -> Trace:
    """The trace in a file: Azure LLM inference (CSV), Mooncake or VTC arena (JSON lines), or lengths (CSV).

    The format is told by the names of the columns. Calls with an empty prompt or reply count as 1 token. Raises
    `BadTrace`, and `OSError` where the file cannot be read.
    """
    with path.open(encoding="utf-8", newline="") as lines:
        return parse(lines, str(path))


def parse(lines: Iterable[str], name: str) -> Trace:
    """The trace in lines of text; `name` is for errors. Raises `BadTrace`."""
    kept = [line for line in lines if line.strip()]
    if not kept:
        raise BadTrace(f"{name} is empty: expected a trace")
    try:
        rows: Iterable[dict[str, Any]]
        rows = map(json.loads, kept) if kept[0].lstrip().startswith("{") else csv.DictReader(kept)
        rows = list(rows)
    except ValueError as error:
        raise BadTrace(f"{name} is not JSON lines: {error}") from error
    found = next((form for form in _FORMATS if rows and set(form.columns) <= rows[0].keys()), None)
    if found is None:
        known = "; ".join(", ".join(form.columns) for form in _FORMATS)
        raise BadTrace(f"{name} is no known trace: expected the columns of one of these formats: {known}")
    return Trace(tuple(_calls(rows, found, name)), found.timed)


def _calls(rows: Iterable[dict[str, Any]], form: _Format, name: str) -> list[Call]:
    calls = []
    for number, row in enumerate(rows, 1):
        try:
            calls.append(form.read(row))
        except (KeyError, TypeError, ValueError) as error:
            raise BadTrace(f"{name}, entry {number}: {type(error).__name__}: {error}") from error
    calls.sort(key=lambda call: call.at)
    start = calls[0].at
    return [
        replace(call, at=call.at - start, num_prompt=max(1, call.num_prompt), num_output=max(1, call.num_output))
        for call in calls
    ]
