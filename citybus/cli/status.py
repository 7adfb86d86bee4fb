"""`citybus status`: what a scheduler is doing, from its admin port."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

import grpc
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc as pb_grpc
from citybus.cli.admin import add_admin_address, admin_channel
from citybus.errors import CitybusError, from_rpc
from citybus.failure import Failure

_TIMEOUT_S = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--once", action="store_true", help="print one reading (default where stdout is no terminal)")
    parser.add_argument("--json", action="store_true", help="print one reading as a line of JSON")
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="seconds between two readings, whose difference gives the rates; at least 0.05 (default: 1)",
    )
    add_admin_address(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show one reading, or one after the other until Ctrl-C."""
    with admin_channel(args) as channel:
        readings = _readings(pb_grpc.AdminServiceStub(channel), args.admin_address, args.interval)
        if args.once or args.json or not sys.stdout.isatty():
            reading = next(readings)
            if isinstance(reading, CitybusError):
                raise Failure(f"{reading}; start a server with 'citybus serve', or name one with --admin-address")
            _print_once(*reading, as_json=args.json)
            return 0
        _watch(readings)
    return 0


Reading = tuple[pb.GetStatusResponse, float | None]
"""A reading and the tokens per second since the one before (None where that was of another scheduler)."""


def _readings(stub: pb_grpc.AdminServiceStub, address: str, interval: float) -> Iterator[Reading | CitybusError]:
    """A reading every `interval` seconds, from the second on; an error where the scheduler does not answer."""
    before: pb.GetStatusResponse | None = None
    while True:
        try:
            now = stub.GetStatus(pb.GetStatusRequest(), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            before = None
            yield from_rpc(error, address)
        else:
            if before is not None:
                yield now, tokens_per_second(before, now)
            before = now
        time.sleep(interval)


def tokens_per_second(before: pb.GetStatusResponse, now: pb.GetStatusResponse) -> float | None:
    """Generation rate between two readings, None where the scheduler was restarted between them."""
    seconds = (now.uptime_ms - before.uptime_ms) / 1000
    return (now.totals.generated_tokens - before.totals.generated_tokens) / seconds if seconds > 0 else None


def _watch(readings: Iterator[Reading | CitybusError]) -> None:
    with Live(Text("reading ..."), auto_refresh=False, console=Console()) as live:
        try:
            for reading in readings:
                shown: RenderableType = (
                    Text(f"{reading}; trying again", style="red")
                    if isinstance(reading, CitybusError)
                    else render(*reading)
                )
                live.update(shown, refresh=True)
        except KeyboardInterrupt:
            return


def _print_once(status: pb.GetStatusResponse, rate: float | None, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(as_dict(status, rate)))
    else:
        Console().print(render(status, rate))


def as_dict(status: pb.GetStatusResponse, rate: float | None) -> dict[str, object]:
    """A reading for JSON: the fields of the protocol, the hit rate (0 to 1) and the tokens per second."""
    plain = {name: getattr(status, name) for name in status.DESCRIPTOR.fields_by_name if name not in ("pool", "totals")}
    for part in ("pool", "totals"):
        message = getattr(status, part)
        plain[part] = {name: getattr(message, name) for name in message.DESCRIPTOR.fields_by_name}
    return plain | {"hit_rate": hit_rate(status), "tokens_per_second": rate}


def hit_rate(status: pb.GetStatusResponse) -> float | None:
    """Share of all prompt tokens that were found in the prefix cache; None before the first."""
    totals = status.totals
    return totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else None


def render(status: pb.GetStatusResponse, rate: float | None) -> RenderableType:
    """A reading for people."""
    pool, totals = status.pool, status.totals
    slots = pool.held * pool.block_size
    lines = {
        "seats": f"{status.running} of {status.max_running} taken",
        "queue": f"{status.waiting} waiting",
        "pool": f"{pool.free} free, {pool.cached} cached, {pool.held} held blocks of {pool.block_size} tokens",
        "held": f"{pool.tokens_held} tokens in {slots} slots ({_percent(pool.tokens_held, slots)})",
        "hit rate": _percent(totals.cached_tokens, totals.prompt_tokens) + " of prompt tokens",
        "speed": f"{rate:.1f} tokens/s" if rate is not None else "-",
        "requests": f"{totals.accepted} accepted, {totals.finished} ended, {totals.preemptions} preemptions",
    }
    state = "draining" if status.draining else "serving" if status.executor_connected else "waiting for an executor"
    title = f"{status.model or 'no model'}, policy {status.policy}, {state}, up {status.uptime_ms // 1000} s"
    return Group(Text(title, style="bold"), *(Text(f"{name:10}{value}") for name, value in lines.items()))


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.05 <= value <= 3600:
        raise argparse.ArgumentTypeError("expected 0.05 to 3600 seconds")
    return value
