"""`citybus events`: what happens to a scheduler, a line of JSON each."""

from __future__ import annotations

import argparse
import json

from citybus.admin.v1 import admin_pb2 as pb
from citybus.cli.admin import add_admin_options, operating


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_admin_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print events until Ctrl-C, or until the scheduler ends."""
    with operating(args) as (admin, metadata):
        for response in admin.WatchEvents(pb.WatchEventsRequest(), metadata=metadata):
            print(json.dumps(as_dict(response)), flush=True)
    return 0


def as_dict(response: pb.WatchEventsResponse) -> dict[str, object]:
    """An event for JSON: number, time, name, and the fields of the protocol."""
    name = response.WhichOneof("event")
    plain: dict[str, object] = {"number": response.number, "unix_ms": response.unix_ms, "event": name}
    if name is not None:
        message = getattr(response, name)
        for field in message.DESCRIPTOR.fields:
            value = getattr(message, field.name)
            plain[field.name] = list(value) if field.is_repeated else value
    return plain
