"""Makes API keys. What a scheduler keeps of one tells whose it is, and cannot be turned back into it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from pathlib import Path

_TENANT = re.compile(r"[ -~]{1,128}")
_ID_BYTES = 6
_SALT_BYTES = 16
_SECRET_BYTES = 32


def make_key(tenant: str) -> tuple[str, str]:
    """A new key of `tenant`, and the line of a keys file for it. Raises `ValueError` for a name of no tenant.

    The line has SHA-256 of salt and secret: a secret of 256 random bits is not found by trying, however fast the hash.
    """
    if not _TENANT.fullmatch(tenant):
        raise ValueError("the tenant's name must be 1 to 128 printable ASCII characters")
    key_id, salt = secrets.token_hex(_ID_BYTES), secrets.token_bytes(_SALT_BYTES)
    secret = secrets.token_hex(_SECRET_BYTES)
    digest = hashlib.sha256(salt + secret.encode()).hexdigest()
    line = json.dumps({"id": key_id, "tenant": tenant, "salt": salt.hex(), "sha256": digest})
    return f"citybus_{key_id}_{secret}", line


def add_line(path: Path, line: str) -> None:
    """Add a line to the keys file at `path`; made, for this user alone, where there is none. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())  # at once, so that a server never reads the half of it
    finally:
        os.close(descriptor)
