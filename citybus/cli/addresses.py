"""Where `citybus serve` listens: three addresses, all of which have to be free."""

from __future__ import annotations

import argparse
import contextlib
import socket

from citybus.cli.admin import DEFAULT_ADMIN_ADDRESS
from citybus.connection import DEFAULT_ADDRESS
from citybus.failure import Failure

_ADDRESSES = (
    ("--listen", DEFAULT_ADDRESS, "the scheduler"),
    ("--admin-listen", DEFAULT_ADMIN_ADDRESS, "the scheduler's admin service"),
    ("--executor-listen", "127.0.0.1:50061", "the executor"),
)


def add_addresses(parser: argparse.ArgumentParser) -> None:
    """An option for each."""
    for flag, address, of in _ADDRESSES:
        parser.add_argument(flag, metavar="HOST:PORT", default=address, help=f"where {of} listens (default: {address})")


def check_free(args: argparse.Namespace) -> None:
    """Try to listen where the children will, everywhere at once. Raises `Failure`, which names all that is taken."""
    taken = []
    with contextlib.ExitStack() as probes:
        for flag, _, of in _ADDRESSES:
            address = getattr(args, flag.removeprefix("--").replace("-", "_"))
            try:
                probes.enter_context(_listening(address, flag))
            except OSError as error:
                taken.append(
                    f"{of} cannot listen on {address} ({error.strerror}): stop what does, or choose another with {flag}"
                )
    if taken:
        raise Failure("\n".join(taken))


def _listening(address: str, flag: str) -> socket.socket:
    """Raises `OSError`, and `Failure` where it is no address."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Failure(f"{flag} {address!r} is not an address: expected host:port, such as {DEFAULT_ADDRESS}")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    family, kind, protocol, _, resolved = found[0]
    probe = socket.socket(family, kind, protocol)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(resolved)
        probe.listen()
    except OSError:
        probe.close()
        raise
    return probe
