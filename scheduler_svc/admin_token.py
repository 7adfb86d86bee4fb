"""Who may operate the scheduler: whoever knows the admin token."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from common.doorkeeper import TokenInterceptor
from common.errors import StartupError
from common.secret_file import read_or_make_secret

_CLIENTS_VARIABLE = "CITYBUS_ADMIN_TOKEN"  # its name, not its value
_REFUSAL = (
    "the admin token is missing or wrong: send the metadata 'authorization: Bearer TOKEN' with that of the scheduler's"
    " --admin-token-file (it has to have one where it listens beyond its own machine)"
)


def read_token(path: Path | None, environ: Mapping[str, str]) -> str | None:
    """The token in the file, made where there is none; None without a file. Raises `StartupError`."""
    if path is not None:
        return read_or_make_secret(path, "the admin token")
    if environ.get(_CLIENTS_VARIABLE):
        raise StartupError(
            f"{_CLIENTS_VARIABLE} is for operators' commands: set --admin-token-file for the scheduler, or unset it"
        )
    return None


def admin_doorkeeper(token: str | None) -> TokenInterceptor:
    """Asks for the token wherever something can be changed or read of requests; refuses all that, where it is None."""
    return TokenInterceptor(token, "/citybus.admin.v1.", _REFUSAL, ["/citybus.admin.v1.AdminService/GetStatus"])
