"""TLS between our processes: certificates from files, and what a failed handshake means."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from common.config import flag_of
from common.errors import StartupError

_FAILURES = {
    "unable to get local issuer certificate": "its certificate is not of the CA that is trusted here",
    "self-signed certificate": "its certificate is not of the CA that is trusted here",
    "certificate has expired": "its certificate has expired: give it a new one",
    "certificate is not yet valid": "its certificate is not valid yet: see both clocks",
    "Hostname Verification Check failed": "its certificate is for another name than this address",
    "WRONG_VERSION_NUMBER": "it speaks no TLS: give it a certificate, or trust no CA here",
    "Socket closed": "it closed the connection: it may expect TLS, or a certificate of a CA that it trusts",
}


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: one's own certificate chain with its key, and the CA of those on the other side."""

    cert: Path | None
    key: Path | None
    ca: Path | None


def check_tls_options(settings: Any, cert: str, key: str, ca: str = "") -> None:
    """Raise `ValueError` where one of two options that belong together is missing; `ca`, if named, needs both."""
    has_cert, has_key = (getattr(settings, name) is not None for name in (cert, key))
    if has_cert != has_key:
        raise ValueError(f"{flag_of(cert)} and {flag_of(key)} belong together: set both, or neither")
    if ca and getattr(settings, ca) is not None and not has_cert:
        raise ValueError(f"{flag_of(ca)} needs {flag_of(cert)} and {flag_of(key)}: without them there is no TLS")


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials | None:
    """What a server shows; None: no TLS. Clients must have a certificate of the CA, if one is given.

    Raises `StartupError` where a file is no good.
    """
    if files.cert is None or files.key is None:
        return None
    pair = _read_pair(files.cert, files.key)
    ca = None if files.ca is None else _read_ca(files.ca)
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials | None:
    """Whom a client trusts, and what it shows; None, without a CA: no TLS. Raises `StartupError`."""
    if files.ca is None:
        return None
    pair = (None, None) if files.cert is None or files.key is None else _read_pair(files.cert, files.key)
    return grpc.ssl_channel_credentials(_read_ca(files.ca), *pair)


def explain_failure(details: str) -> str:
    """gRPC's words for a connection that did not come about, and ours where TLS is why."""
    means = next((means for words, means in _FAILURES.items() if words in details), None)
    return details if means is None else f"{means} ({details})"


def _read_pair(cert: Path, key: Path) -> tuple[bytes, bytes]:
    """Key and certificate chain. Python's own TLS says what is wrong with them; gRPC does not."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
        return key.read_bytes(), cert.read_bytes()
    except OSError as error:  # ssl.SSLError is one
        raise StartupError(f"{cert} and {key} are no certificate with its key: {_reason(error)}") from error


def _read_ca(path: Path) -> bytes:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        return path.read_bytes()
    except OSError as error:
        raise StartupError(f"{path} holds no certificate of a CA: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)
