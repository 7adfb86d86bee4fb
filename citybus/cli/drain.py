"""`citybus drain`: no new requests, until told otherwise."""

from __future__ import annotations

import argparse

from citybus.admin.v1 import admin_pb2 as pb
from citybus.cli.admin import TIMEOUT_S, add_admin_options, operating


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--resume", action="store_true", help="take new requests again")
    add_admin_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Drain, or resume."""
    with operating(args) as (admin, metadata):
        if args.resume:
            admin.Resume(pb.ResumeRequest(), timeout=TIMEOUT_S, metadata=metadata)
            print("new requests are taken again")
        else:
            response = admin.Drain(pb.DrainRequest(), timeout=TIMEOUT_S, metadata=metadata)
            print(f"new requests are refused; {response.in_flight} in flight go on")
    return 0
