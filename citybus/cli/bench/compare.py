"""`citybus bench compare`: what continuous batching and paging are worth, on one server."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from citybus.bench.compare import Mode, compare, default_modes
from citybus.bench.compare_report import comparison_dict, comparison_table, curves, panels
from citybus.bench.policies import LivePolicy
from citybus.bench.report import write_json
from citybus.bench.run import Run, Settings, run
from citybus.bench.workload import Call
from citybus.cli.admin import add_admin_options, operating
from citybus.cli.bench.options import (
    add_workload,
    calls_of,
    check_writable,
    console,
    positive_int,
    server_of,
    target_of,
    workload_of,
    writing,
)
from citybus.cli.bench.progress import counting
from citybus.cli.options import add_address, add_api_key, failures, positive

_MODE_HELP = (
    "a policy to compare, may be repeated; the first is what the others are held against (default: static_batch,"
    " contiguous with the longest reply of the workload, fcfs)"
)
_RATES_HELP = "also at these mean rates, with Poisson arrivals, in requests per second (default: none)"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_address(parser)
    add_api_key(parser)
    add_admin_options(parser)
    add_workload(parser, requests=64)
    add = parser.add_argument
    add("--rounds", type=positive_int, default=3, metavar="N", help="times that every mode runs (default: 3)")
    add("--mode", type=_mode, action="append", metavar="POLICY[:PARAMETER=VALUE;...]", help=_MODE_HELP)
    add("--rates", type=_rates, default=(), metavar="R,R,...", help=_RATES_HELP)
    add("--json", type=Path, metavar="FILE", help="write the figures of every run (default: no)")
    add("--plot", type=Path, metavar="FILE", help="draw them as a PNG; needs the extra 'bench' (default: no)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    check_writable(args.json, args.plot)
    if args.plot is not None:
        from citybus.bench import plot

        plot.check()
    settings = Settings(server_of(args), args.seed)
    with failures(args.address), operating(args) as (admin, metadata):
        calls, _ = calls_of(args, target_of(settings.server))
        modes = args.mode or default_modes(calls)
        live = LivePolicy(admin, metadata)
        found = compare(live, calls, modes, args.rounds, args.rates, args.seed, lambda *what: _measure(settings, *what))
    console().print(comparison_table(found))
    with writing(args.json):
        if args.json is not None:
            write_json(args.json, comparison_dict(found, workload_of(args, len(calls))))
    with writing(args.plot):
        if args.plot is not None:
            plot.draw_bars(args.plot, found.trials[0].run.model, panels(found), curves(found))
    return 1 if found.faults else 0


def _measure(settings: Settings, calls: Sequence[Call], label: str) -> Run:
    with counting(label, len(calls)) as on_record:
        return asyncio.run(run(settings, calls, label, on_record=on_record))


def _mode(text: str) -> Mode:
    try:
        return Mode.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _rates(text: str) -> tuple[float, ...]:
    return tuple(positive(part) for part in text.split(","))
