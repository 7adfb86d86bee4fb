"""Request traces: who sent how much, and when."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Call:
    """A request of a trace; `at` is in seconds from the first."""

    at: float
    tenant: str
    num_prompt: int
    num_output: int


def read(path: Path, limit: int) -> list[Call]:
    """The first `limit` requests: of a VTC arena trace (JSON lines), or of an Azure LLM trace (CSV)."""
    with path.open(encoding="utf-8") as lines:
        calls = _read_arena(lines.read()) if path.suffix == ".jsonl" else _read_azure(csv.DictReader(lines))
    calls = sorted(calls, key=lambda call: call.at)[:limit]
    return [Call(call.at - calls[0].at, call.tenant, call.num_prompt, call.num_output) for call in calls]


def _read_arena(text: str) -> list[Call]:
    rows = (json.loads(line) for line in text.splitlines() if line)
    return [Call(row["t_s"], str(row["tenant"]), row["input_tokens"], row["output_tokens"]) for row in rows]


def _read_azure(rows: csv.DictReader[str]) -> list[Call]:
    return [
        Call(_seconds(row["TIMESTAMP"]), "", int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows
    ]


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp[:26]).timestamp()
