"""`citybus bench`: how fast a running server is, and what that costs."""

from __future__ import annotations

import argparse

from citybus.cli.bench import compare, cost, serve


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the commands and their options."""
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module, summary in (
        ("serve", serve, "send a load to a server and measure its answers"),
        ("compare", compare, "run a load under one policy after the other, and say what they are worth"),
        ("cost", cost, "say what a million tokens cost, by shape of traffic"),
    ):
        module.configure(commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + "."))
