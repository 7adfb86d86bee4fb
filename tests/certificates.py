"""Certificates of authorities that only a test trusts."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme


class Authority:
    """A CA with files in `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._ca = trustme.CA()
        self._folder = folder
        self._name = name
        self.ca = folder / f"{name}-ca.pem"
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *hosts: str, expired: bool = False) -> tuple[Path, Path]:
        """Certificate and key for `hosts` (this machine if none)."""
        now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
        valid = {"not_before": now - 2 * day, "not_after": now - day} if expired else {}
        issued = self._ca.issue_cert(*(hosts or ("127.0.0.1", "localhost")), **valid)
        cert, key = (self._folder / f"{self._name}-{name}.{kind}.pem" for kind in ("cert", "key"))
        issued.cert_chain_pems[0].write_to_path(cert)
        issued.private_key_pem.write_to_path(key)
        return cert, key
