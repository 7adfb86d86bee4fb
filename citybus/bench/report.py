"""Results for machines (JSON) and for people (tables)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from citybus.bench.distribution import Distribution
from citybus.bench.run import Run

FORMAT = "citybus-bench-run-2"
_DIGITS = 6


def run_dict(run: Run, workload: Mapping[str, object]) -> dict[str, Any]:
    """A run for JSON: seconds, and shares from 0 to 1. `workload` says what was asked for."""
    plain = dataclasses.asdict(run)
    plain["summary"] |= {"goodput_per_s": run.summary.goodput_per_s, "good_share": run.summary.good_share}
    return {"format": FORMAT, "valid": not run.faults, "workload": dict(workload), **rounded(plain)}


def rounded(value: Any) -> Any:
    """A plain value with its numbers to the microsecond, for JSON."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, (list, tuple)) else value


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """One JSON object in a file. Raises `OSError`."""
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def run_table(run: Run) -> RenderableType:
    """A run for people; times in milliseconds."""
    summary = run.summary
    table = Table(title=f"{run.label}: {run.model}", title_justify="left")
    for name in ("", "mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right" if name else "left")
    for name, distribution in (
        ("time to first token, ms", summary.ttft_s),
        ("between tokens, ms", summary.inter_token_s),
        ("time per output token, ms", summary.tpot_s),
        ("end to end, ms", summary.e2e_s),
        ("normalised (end to end / output tokens), ms", summary.normalised_s),
    ):
        table.add_row(name, *_milliseconds(distribution))
    return Group(table, *(Text(line) for line in _lines(run)), *verdict(run.faults, run.cautions))


def _milliseconds(found: Distribution | None) -> list[str]:
    if found is None:
        return ["-"] * 4
    return [f"{1000 * value:.1f}" for value in (found.mean, found.p50, found.p90, found.p99)]


def _lines(run: Run) -> list[str]:
    summary, server = run.summary, run.server
    window = summary.window
    failed = ", ".join(f"{count} {code}" for code, count in sorted(summary.failures.items())) or "none"
    lines = [
        f"window      {window.length:.1f} s from {window.start:.1f} s on, {summary.sent} requests sent in it",
        f"throughput  {summary.output_tokens_per_s:.1f} output tokens/s, {summary.input_tokens_per_s:.1f} input "
        f"tokens/s, {summary.answers_per_s:.2f} answers/s",
    ]
    if summary.goodput_per_s is not None:
        lines.append(
            f"goodput     {summary.goodput_per_s:.2f} requests/s, {percent(summary.good_share)} of them in time"
        )
    lines.append(f"failed      {failed}")
    if server is not None:
        lines += [
            f"running     {server.running:.1f} (most {server.most_running}), waiting {server.waiting:.1f} "
            f"(most {server.most_waiting}), {server.preemptions} preemptions",
            f"KV memory   {percent(server.kv_utilisation)} of reserved slots hold tokens, "
            f"{percent(server.hit_rate)} of prompt tokens were cached",
        ]
    client = run.client
    lines.append(
        f"client      {1000 * client.late_p99_s:.1f} ms late (p99), its loop {1000 * client.lag_p99_s:.1f} ms (p99), "
        f"{percent(client.cpu)} of a core"
    )
    return lines


def verdict(faults: Sequence[str], cautions: Sequence[str] = ()) -> list[Text]:
    """Whether a result counts."""
    return [
        *(Text(f"NOT VALID: {fault}", style="bold red") for fault in faults),
        *(Text(f"CAUTION: {caution}", style="yellow") for caution in cautions),
    ]


def percent(share: float | None) -> str:
    """A share for people."""
    return "-" if share is None else f"{100 * share:.1f} %"
