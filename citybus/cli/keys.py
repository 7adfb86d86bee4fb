"""`citybus keys`: who may use a server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from citybus.failure import Failure
from citybus.keys import add_line, make_key
from citybus.supervisor.control import state_folder


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    commands = parser.add_subparsers(dest="keys_command", metavar="COMMAND", required=True)
    new = commands.add_parser("new", help="make a key of a tenant, print it, and keep its hash in the keys file")
    new.add_argument("--tenant", metavar="NAME", required=True, help="whose key it is")
    new.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        default=state_folder() / "keys.jsonl",
        help="keys file of the scheduler, made where there is none (default: keys.jsonl in citybus/ of the user's state"
        " directory)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the new key, alone, on standard output: it can be written to a file, and is never shown again."""
    try:
        key, line = make_key(args.tenant)
        add_line(args.file, line)
    except ValueError as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"{args.file} cannot be written: {error.strerror}") from error
    print(key)
    print(
        f"a key of {args.tenant!r}; it is not kept, so keep it now. Servers with --keys-file {args.file} take it from"
        " now on; to withdraw it, remove the line of its id there",
        file=sys.stderr,
    )
    return 0
