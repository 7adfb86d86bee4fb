"""`citybus upgrade`: a new scheduler process in the place of the one that runs, from the code that is installed now."""

from __future__ import annotations

import argparse

from citybus.cli.options import add_address
from citybus.supervisor.control import ask_to_upgrade, control_path


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_address(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Return once the new scheduler serves."""
    ask_to_upgrade(control_path(args.address), lambda line: print(line, flush=True))
    return 0
