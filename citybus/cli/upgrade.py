"""`citybus upgrade`: a new scheduler process in the place of the one that runs, from the code that is installed now."""

from __future__ import annotations

import argparse

from citybus.connection import DEFAULT_ADDRESS
from citybus.supervisor.control import ask_to_upgrade, control_path


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=DEFAULT_ADDRESS,
        help=f"the --listen of the 'citybus serve' on this machine; CITYBUS_ADDRESS is not read (default: "
        f"{DEFAULT_ADDRESS})",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Return once the new scheduler serves."""
    ask_to_upgrade(control_path(args.listen), lambda line: print(line, flush=True))
    return 0
