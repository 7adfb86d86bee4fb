"""Options that the benchmarks share, and what they mean."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from citybus.bench.arrivals import Arrivals, timed
from citybus.bench.measures import Objectives
from citybus.bench.run import Server, Settings, Target, find_target
from citybus.bench.traces import BadTrace, Trace, read
from citybus.bench.workload import Call, Lengths, drawn, fitted, sampled
from citybus.cli.admin import DEFAULT_ADMIN_ADDRESS
from citybus.cli.options import add_connection, api_key_of, failures, positive
from citybus.cli.tls import tls_of
from citybus.errors import Unreachable
from citybus.failure import Failure

_WIDTH = 120
_ARRIVALS_HELP = (
    "poisson, gamma:CV (burstier where the coefficient of variation is more than 1), trace (its own times) or"
    " all-at-once (default: poisson where --rate is given, else trace where the trace has times, else all-at-once)"
)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which server."""
    add_connection(parser)
    parser.add_argument(
        "--admin-address",
        metavar="HOST:PORT|none",
        default=os.environ.get("CITYBUS_ADMIN_ADDRESS", DEFAULT_ADMIN_ADDRESS),
        help=f"where it is read; none does without (default: CITYBUS_ADMIN_ADDRESS, or {DEFAULT_ADMIN_ADDRESS})",
    )


def add_workload(parser: argparse.ArgumentParser, *, requests: int) -> None:
    """What is asked for, and when."""
    add = parser.add_argument_group("workload").add_argument
    add("--trace", type=Path, metavar="FILE", help="lengths, and times where it has them, from a trace (see the docs)")
    add(
        "--prompt-tokens",
        type=lengths,
        default=Lengths(64, 256),
        metavar="A-B",
        help="without a trace: tokens of a prompt, drawn uniformly (default: 64-256)",
    )
    add(
        "--output-tokens",
        type=lengths,
        default=Lengths(16, 128),
        metavar="A-B",
        help="without a trace: tokens of an answer, drawn uniformly (default: 16-128)",
    )
    add("--seed", type=int, default=0, metavar="S", help="of all that is random (default: 0)")
    add("--requests", type=positive_int, default=requests, metavar="N", help=f"how many (default: {requests})")


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    """When requests are sent."""
    parser.add_argument("--rate", type=positive, metavar="R", help="mean requests per second (default: see --arrivals)")
    parser.add_argument("--arrivals", metavar="KIND", help=_ARRIVALS_HELP)


def add_measures(parser: argparse.ArgumentParser) -> None:
    """Objectives, and what counts."""
    add = parser.add_argument_group("measures").add_argument
    add("--slo-ttft-ms", type=positive, metavar="MS", help="objective for the first token (default: none)")
    add("--slo-tpot-ms", type=positive, metavar="MS", help="objective per output token after it (default: none)")
    add("--warm-up", type=share, default=0.1, metavar="SHARE", help="of the sending time, left out (default: 0.1)")
    add("--cool-down", type=share, default=0.1, metavar="SHARE", help="of the sending time, left out (default: 0.1)")


def settings_of(args: argparse.Namespace) -> Settings:
    """The server and the measures. Raises `Failure`."""
    objectives = Objectives(_seconds(args.slo_ttft_ms), _seconds(args.slo_tpot_ms))
    return Settings(server_of(args), args.seed, objectives, args.warm_up, args.cool_down)


def server_of(args: argparse.Namespace) -> Server:
    """The server, and where it is read, if it is. Raises `Failure`."""
    admin_address = None if args.admin_address == "none" else str(args.admin_address)
    return Server(args.address, admin_address, tls_of(args), api_key_of(args))


def target_of(server: Server) -> Target:
    """What is served. Raises `Failure`."""
    with failures(server.address):
        try:
            return asyncio.run(find_target(server))
        except Unreachable as error:
            if server.admin_address is not None and server.admin_address in str(error):
                raise Failure(f"{error}; name the admin address of the scheduler with --admin-address") from error
            raise


def calls_of(args: argparse.Namespace, target: Target) -> tuple[list[Call], bool]:
    """The calls, fitted to the target, and whether they have times of their own. Raises `Failure`."""
    if args.trace is None:
        calls = drawn(args.requests, args.prompt_tokens, args.output_tokens, args.seed)
        if max(call.num_tokens for call in calls) > target.max_tokens:
            raise Failure(
                f"prompt and answer take up to {max(call.num_tokens for call in calls)} tokens and the server takes "
                f"{target.max_tokens}: ask for less with --prompt-tokens and --output-tokens"
            )
        return calls, False
    trace = trace_in(args.trace)
    calls = fitted(trace.calls, target.max_tokens)
    return (calls[: args.requests], True) if trace.timed else (sampled(calls, args.requests, args.seed), False)


def trace_in(path: Path) -> Trace:
    """The trace in a file. Raises `Failure`."""
    try:
        return read(path)
    except OSError as error:
        raise Failure(f"the trace cannot be read: {error}") from error
    except BadTrace as error:
        raise Failure(str(error)) from error


def with_arrivals(args: argparse.Namespace, calls: list[Call], has_times: bool) -> tuple[list[Call], Arrivals]:
    """The calls at their times. Raises `Failure`."""
    default = "poisson" if args.rate is not None else "trace" if has_times else "all-at-once"
    with failures(args.address):
        arrivals = Arrivals.parse(args.arrivals or default, args.rate)
    if arrivals.kind == "trace" and not has_times:
        raise Failure("--arrivals trace needs a --trace with times: name one, or choose other arrivals")
    return timed(calls, arrivals, args.seed), arrivals


def workload_of(args: argparse.Namespace, count: int) -> dict[str, object]:
    """What is asked for, for the record."""
    prompt, output = args.prompt_tokens, args.output_tokens
    drawn_from = {"prompt_tokens": [prompt.least, prompt.most], "output_tokens": [output.least, output.most]}
    source = {"trace": args.trace.name} if args.trace else drawn_from
    return {**source, "requests": count, "seed": args.seed}


def console() -> Console:
    """Where tables go; wide enough for them where it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)


@contextmanager
def writing(path: Path | None) -> Iterator[None]:
    """Turns an error in writing a result into a `Failure`."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror or error}") from error


def check_writable(*paths: Path | None) -> None:
    """Raises `Failure` before the work rather than after it."""
    for path in paths:
        if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise Failure(f"{path} cannot be written: {path.parent} is no folder to write into")


def lengths(text: str) -> Lengths:
    """A number of tokens or a range, as an option."""
    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive_int(text: str) -> int:
    """A whole number over 0, as an option."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("expected 1 or more")
    return value


def share(text: str) -> float:
    """A share, as an option."""
    value = float(text)
    if not 0 <= value < 0.5:
        raise argparse.ArgumentTypeError("expected a share from 0 up to 0.5")
    return value


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
