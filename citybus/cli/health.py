"""`citybus health`: does a service of ours, scheduler or executor, serve? Containers are checked with it."""

from __future__ import annotations

import argparse

from citybus.cli.options import add_address, failures
from citybus.cli.tls import add_tls, tls_of
from citybus.client import Client
from citybus.errors import Unavailable
from citybus.failure import Failure


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_address(parser)
    add_tls(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="seconds to wait until it is healthy (default: 3)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Return once the service is healthy. Raises `Failure` where it is not in time."""
    with failures(args.address), Client(args.address, tls=tls_of(args)) as client:
        try:
            client.wait_ready(args.timeout)
        except Unavailable as error:
            raise Failure(str(error)) from error
    return 0
