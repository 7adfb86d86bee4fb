"""Who may operate the scheduler: whoever knows the admin token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from common.doorkeeper import TokenInterceptor
from common.secret_file import read_secret

TOKEN_VARIABLE = "CITYBUS_ADMIN_TOKEN"  # its name, not its value
"""Environment variable with the token, where no file is given. Never a flag: those show in the process list."""

_REFUSAL = (
    "the admin token is missing or wrong: send the metadata 'authorization: Bearer TOKEN' with the scheduler's"
    f" (its {TOKEN_VARIABLE} or --admin-token-file; it has to have one where it listens beyond its own machine)"
)


def read_token(path: Path | None, environ: Mapping[str, str]) -> str | None:
    """The token; None where there is none. Raises `StartupError` where the file gives none."""
    if path is None:
        return environ.get(TOKEN_VARIABLE) or None
    return read_secret(path, "the admin token")


def admin_doorkeeper(token: str | None) -> TokenInterceptor:
    """Asks for the token wherever something can be changed or read of requests; refuses all that, where it is None."""
    return TokenInterceptor(token, "/citybus.admin.v1.", _REFUSAL, ["/citybus.admin.v1.AdminService/GetStatus"])
