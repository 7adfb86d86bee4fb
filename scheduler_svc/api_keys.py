"""API keys: which tenant a key stands for, from a file that does not hold the keys.

A key is `citybus_ID_SECRET`; its line in the file has the id, the tenant, a salt, and SHA-256 of salt and secret. The
secret has 256 random bits, so that nobody finds it by trying, however fast the hash is: the slow ones (scrypt, argon2)
are for passwords, and would only let strangers keep the server busy with wrong keys.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

_KEY = re.compile(rb"citybus_([0-9a-f]{12})_([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key: whose it is, and what its secret hashes to."""

    tenant: str
    salt: bytes
    digest: bytes


_NOBODY = ApiKey("", b"", bytes(hashlib.sha256().digest_size))


class ApiKeys:
    """The keys of a file, by their ids."""

    def __init__(self, keys: Mapping[bytes, ApiKey]) -> None:
        self._keys = keys

    def tenant_of(self, key: bytes) -> str | None:
        """Whose key it is; None for one that is unknown, or no key. What is secret is compared in constant time."""
        match = _KEY.fullmatch(key)
        key_id, secret = match.groups() if match else (b"", b"")
        known = self._keys.get(key_id, _NOBODY)
        fits = hmac.compare_digest(hashlib.sha256(known.salt + secret).digest(), known.digest)
        return known.tenant if fits else None


def parse_keys(text: str) -> ApiKeys:
    """The keys of a file: one JSON object a line. Raises `ValueError`, which names the line and quotes nothing."""
    keys = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                key_id, key = _parse_line(line)
            except (ValueError, TypeError, KeyError):
                raise ValueError(f"line {number} is no key as 'citybus keys new' writes it") from None
            keys[key_id.encode()] = key
    return ApiKeys(keys)


def _parse_line(line: str) -> tuple[str, ApiKey]:
    fields = json.loads(line)
    key_id, tenant = fields["id"], fields["tenant"]
    if not (isinstance(key_id, str) and isinstance(tenant, str) and tenant):
        raise TypeError
    return key_id, ApiKey(tenant, bytes.fromhex(fields["salt"]), bytes.fromhex(fields["sha256"]))
