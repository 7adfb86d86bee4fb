"""The options that make a command's connection secure."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from citybus.errors import Insecure
from citybus.failure import Failure
from citybus.tls import Tls

SYSTEM = "system"
"""In the place of a file: the CAs that gRPC trusts."""

_OPTIONS = {
    "ca": f'PEM file with the CA of the server\'s certificate, or "{SYSTEM}" for the public ones; none is no TLS',
    "cert": "PEM file with a certificate to show to the server",
    "key": "PEM file with the key of --tls-cert",
}


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("TLS")
    for name, help in _OPTIONS.items():
        variable = _variable(name)
        default = os.environ.get(variable)
        group.add_argument(f"--tls-{name}", metavar="FILE", default=default, help=f"{help} (default: {variable})")


def tls_of(args: argparse.Namespace) -> Tls | None:
    """What the options say; None is no TLS. Raises `Failure`."""
    return _tls(args.tls_ca, args.tls_cert, args.tls_key)


def tls_of_environment() -> Tls | None:
    """What their variables say. Raises `Failure`."""
    return _tls(*(os.environ.get(_variable(name)) for name in _OPTIONS))


def _variable(name: str) -> str:
    return f"CITYBUS_TLS_{name.upper()}"


def _tls(ca: str | None, cert: str | None, key: str | None) -> Tls | None:
    if not ca:
        if cert or key:
            raise Failure("a certificate to show needs the server's CA too: set --tls-ca")
        return None
    try:
        return Tls(None if ca == SYSTEM else Path(ca), Path(cert) if cert else None, Path(key) if key else None)
    except ValueError as error:
        raise Failure(str(error)) from error


def insecure(error: Insecure) -> Failure:
    """What to do where no secure connection came about."""
    return Failure(f"{error}; options for that are --tls-ca, --tls-cert and --tls-key")
