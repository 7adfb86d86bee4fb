"""How a client makes its connection secure, and what it means where that fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

_FAILURES = {
    "unable to get local issuer certificate": "its certificate is of no CA that is trusted here: name its CA",
    "self-signed certificate": "its certificate is of no CA that is trusted here: name its CA",
    "certificate has expired": "its certificate has expired: the server needs a new one",
    "certificate is not yet valid": "its certificate is not valid yet: see the clocks of both machines",
    "Hostname Verification Check failed": "its certificate is for another name: use one that it names as the address",
    "WRONG_VERSION_NUMBER": "it speaks no TLS: connect without a CA, or give the server a certificate",
    "Socket closed": (
        "it closed the connection: it may expect TLS (then name its CA), or a certificate that it trusts of this client"
    ),
}


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the CA of the server's certificate (None: those that gRPC trusts), and, where the server asks for one,
    a certificate of one's own with its key.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: a certificate and its key belong together: name both, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel. Raises `ValueError` where a file cannot be read."""
        try:
            ca, key, cert = (_read(path) for path in (self.ca, self.key, self.cert))
        except OSError as error:
            raise ValueError(f"tls: {error.filename} cannot be read: {error.strerror}") from error
        return grpc.ssl_channel_credentials(ca, key, cert)


def _read(path: str | Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def explain_failure(details: str) -> str | None:
    """What it means that no connection came about; None where TLS is not why. `details` are gRPC's words."""
    return next((means for words, means in _FAILURES.items() if words in details), None)
