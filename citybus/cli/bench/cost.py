"""`citybus bench cost`: what a million tokens cost, by shape of traffic."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from citybus.bench.cost import BadResult, Prices, Sustained, sustained, sustained_in
from citybus.bench.measures import Objectives
from citybus.bench.report import percent, rounded, write_json
from citybus.bench.run import Run, Settings, run
from citybus.bench.shapes import SHAPES, Shape, trace_shape
from citybus.bench.workload import Call
from citybus.cli.bench.options import (
    add_target,
    check_writable,
    console,
    positive_int,
    server_of,
    target_of,
    trace_in,
    writing,
)
from citybus.cli.bench.progress import counting
from citybus.cli.options import failures, positive
from citybus.failure import Failure

FORMAT = "citybus-bench-cost-1"
_RESULT_HELP = "price this result of 'citybus bench serve' instead of running anything; may be repeated"
_WEIGHT_HELP = "how many input tokens an output token is charged as (default: 4)"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_target(parser)
    add = parser.add_argument
    add("--price-per-hour", type=positive, required=True, metavar="P", help="of the machine, in any currency")
    add("--result", type=Path, action="append", metavar="JSON", help=_RESULT_HELP)
    add("--shape", choices=tuple(SHAPES), action="append", help="run this one; may be repeated (default: all)")
    add("--trace", type=Path, action="append", metavar="FILE", help="run a trace too; may be repeated (default: none)")
    add("--requests", type=positive_int, default=200, metavar="N", help="in each run (default: 200)")
    add("--seed", type=int, default=0, metavar="S", help="of all that is random (default: 0)")
    add("--slo-ttft-ms", type=positive, default=2000, metavar="MS", help="for the first token (default: 2000)")
    add("--slo-tpot-ms", type=positive, default=200, metavar="MS", help="per token after it (default: 200)")
    add("--slo-share", type=_share, default=0.9, metavar="SHARE", help="that must be in time (default: 0.9)")
    add("--output-weight", type=positive, default=4.0, metavar="W", help=_WEIGHT_HELP)
    add("--json", type=Path, metavar="FILE", help="write the figures (default: no)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    check_writable(args.json)
    found = [_read(path, args.slo_share) for path in args.result] if args.result else list(_measured(args))
    priced = [(one, _prices(args, one)) for one in found]
    console().print(_table(args, priced))
    with writing(args.json):
        if args.json is not None:
            write_json(args.json, _as_dict(args, priced))
    return 0 if all(prices for _, prices in priced) else 1


def _measured(args: argparse.Namespace) -> Iterator[Sustained]:
    objectives = Objectives(args.slo_ttft_ms / 1000, args.slo_tpot_ms / 1000)
    settings = Settings(server_of(args), args.seed, objectives)

    def measure(calls: Sequence[Call], label: str) -> Run:
        with counting(label, len(calls)) as on_record:
            return asyncio.run(run(settings, calls, label, on_record=on_record))

    with failures(args.address):
        target = target_of(settings.server)
        for shape in _shapes(args):
            yield sustained(shape, args.requests, args.seed, target.max_tokens, args.slo_share, measure)


def _shapes(args: argparse.Namespace) -> list[Shape]:
    names = args.shape or ([] if args.trace else list(SHAPES))
    return [*(SHAPES[name] for name in names), *(trace_shape(path.name, trace_in(path)) for path in args.trace or ())]


def _read(path: Path, least_good: float) -> Sustained:
    try:
        return sustained_in(json.loads(path.read_text(encoding="utf-8")), least_good)
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error) if isinstance(error, (OSError, BadResult)) else "it is no JSON object"
        raise Failure(f"the result {path} cannot be read: {reason}") from error


def _prices(args: argparse.Namespace, found: Sustained) -> Prices | None:
    if found.refusal is not None:
        return None
    return Prices.of(args.price_per_hour, found.input_tokens_per_s, found.output_tokens_per_s, args.output_weight)


def _table(args: argparse.Namespace, priced: list[tuple[Sustained, Prices | None]]) -> Table:
    title = f"{args.price_per_hour:g} an hour; an output token is charged as {args.output_weight:g} input tokens"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in ("requests/s", "in time", "input tokens/s", "output tokens/s", "a million input", "a million output"):
        table.add_column(name, justify="right")
    for found, prices in priced:
        speeds = (f"{found.input_tokens_per_s:.1f}", f"{found.output_tokens_per_s:.1f}")
        costs = (
            (f"{prices.per_million_input:.3f}", f"{prices.per_million_output:.3f}")
            if prices
            else ("no price:", found.refusal or "")
        )
        table.add_row(found.name, f"{found.rate:.2f}", percent(found.good_share), *speeds, *costs)
    return table


def _as_dict(args: argparse.Namespace, priced: list[tuple[Sustained, Prices | None]]) -> dict[str, object]:
    shapes = [
        {**dataclasses.asdict(found), "prices": dataclasses.asdict(prices) if prices else None}
        for found, prices in priced
    ]
    terms = {"price_per_hour": args.price_per_hour, "output_weight": args.output_weight, "slo_share": args.slo_share}
    slo = {"slo_ttft_ms": args.slo_ttft_ms, "slo_tpot_ms": args.slo_tpot_ms, "requests": args.requests}
    return {"format": FORMAT, **terms, **({} if args.result else slo), "shapes": rounded(shapes)}


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("expected a share over 0, at most 1")
    return value
