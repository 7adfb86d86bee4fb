"""The command line: `citybus serve | upgrade | generate | chat | status | policy | drain | events | keys | health |
bench | model`.

Exit codes: 0 done, 1 it failed, 2 wrong usage (a line on stderr for each reason), 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

from citybus.cli.output import drop_output
from citybus.cli.parser import Parser
from citybus.failure import Failure

COMMANDS = {
    "serve": "start the executor and the scheduler, and keep them running",
    "upgrade": "replace the scheduler of a running 'citybus serve' by what is installed now; streams go on",
    "generate": "send one prompt and print the answer as it is made",
    "chat": "talk with the model",
    "status": "show seats, queue, KV pool and tokens per second of a scheduler",
    "policy": "list, set, reload and try scheduling policies",
    "drain": "have a scheduler refuse new requests, or take them again",
    "events": "print what happens to a scheduler, as it happens",
    "keys": "make API keys for the tenants of a server",
    "health": "say with the exit code whether a scheduler or an executor is healthy",
    "bench": "measure how fast a server is, compare ways to schedule, and price its tokens",
    "model": "add, list and find models",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog="citybus", description="Serve large language models, and use them.")
    parser.add_argument("--version", action="version", version=f"citybus {importlib.metadata.version('citybus')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if arguments[:1] == [name]:  # the others' imports can wait
            module = importlib.import_module(f"citybus.cli.{name}")
            module.configure(command)
    return _run(parser.parse_args(arguments))


def _run(args: argparse.Namespace) -> int:
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except Failure as failure:
        for line in str(failure).splitlines():
            print(f"citybus: {line}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has seen enough
        drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    return code


if __name__ == "__main__":
    raise SystemExit(main())
