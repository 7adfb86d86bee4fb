"""`citybus bench serve`: a load, and what it measured."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from citybus.bench.report import run_dict, run_table, write_json
from citybus.bench.run import run
from citybus.cli.bench.options import (
    add_arrivals,
    add_measures,
    add_target,
    add_workload,
    calls_of,
    check_writable,
    console,
    settings_of,
    target_of,
    with_arrivals,
    workload_of,
    writing,
)
from citybus.cli.bench.progress import counting
from citybus.cli.options import failures
from citybus.failure import Failure


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_target(parser)
    add_workload(parser, requests=200)
    add_arrivals(parser)
    add_measures(parser)
    parser.add_argument("--label", default="load", metavar="TEXT", help="name of the result (default: load)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured (default: no)")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw it as a PNG; needs the extra 'bench' (default: no)"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    check_writable(args.json, args.plot)
    if args.plot is not None:
        from citybus.bench import plot

        plot.check()
    settings = settings_of(args)
    with failures(args.address):
        target = target_of(settings.server)
        calls, arrivals = with_arrivals(args, *calls_of(args, target))
        with counting(args.label, len(calls)) as on_record:
            result = asyncio.run(run(settings, calls, args.label, on_record=on_record))
    console().print(run_table(result))
    with writing(args.json):
        if args.json is not None:
            sending = {"arrivals": arrivals.kind, "rate": arrivals.rate, "variation": arrivals.variation}
            write_json(args.json, run_dict(result, {**workload_of(args, len(calls)), **sending}))
    with writing(args.plot):
        if args.plot is not None:
            plot.draw_run(args.plot, result)
    if all(record.failure for record in result.records):
        raise Failure("no request was answered: see the failures above")
    return 1 if result.faults else 0
