"""Addresses to listen on: "host:port", an IPv6 host in brackets, port 0 for any free one."""

from __future__ import annotations

import socket

from common.errors import StartupError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def split(address: str) -> tuple[str, int]:
    """Host and port of `address`. Raises `StartupError` where it is not one."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise StartupError(f"{address!r} is not an address to listen on: expected host:port, such as 127.0.0.1:50051")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_free(address: str, flag: str) -> None:
    """Try whether `address`, given by `flag`, can be listened on. Raises `StartupError` with the system's own reason
    where it cannot.
    """
    host, port = split(address)
    try:
        family, kind, protocol, _, resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(resolved)
            probe.listen()
    except OSError as error:
        raise cannot_listen(address, flag, error) from error


def cannot_listen(address: str, flag: str, error: OSError) -> StartupError:
    """The error of a service that could not listen on `address`, given by `flag`."""
    return StartupError(
        f"cannot listen on {address}: {error.strerror}; stop what holds it, or choose another address with {flag}"
    )


def with_port(address: str, port: int) -> str:
    """The address with the port that was bound for it."""
    return f"{address.rsplit(':', 1)[0]}:{port}"


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches what listens there. Raises `StartupError` where it is no address."""
    return split(address)[0] in LOOPBACK


def check_guarded(listen: str, *, guarded: bool, insecure_bind: bool, how: str) -> None:
    """Raise `StartupError` where others than this machine could use a service that asks nobody who they are.

    `how` says what would guard it. An operator who knows what he does sets `insecure_bind`.
    """
    if not (guarded or insecure_bind or is_loopback(listen)):
        raise StartupError(
            f"listening on {listen} without credentials would serve whoever reaches it: {how}; listen on 127.0.0.1; or,"
            " where something else keeps strangers away, set --insecure-bind"
        )
