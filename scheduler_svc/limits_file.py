"""The file with the limits of tenants.

    [default]
    max_requests = 64
    tokens_per_minute = 100_000

    [tenant.night-jobs]
    max_requests = 256
    tokens_per_minute = "none"

What a tenant's table leaves out is as in `default`; what that leaves out is not limited.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from typing import Any

from scheduler_svc.quotas import Limits

_NAMES = tuple(field.name for field in dataclasses.fields(Limits))


class LimitTable:
    """The limits of everybody."""

    def __init__(self, default: Limits, tenants: Mapping[str, Limits]) -> None:
        self._default = default
        self._tenants = tenants

    def of(self, tenant: str) -> Limits:
        """Those of `tenant`."""
        return self._tenants.get(tenant, self._default)


def parse_limits(text: str) -> LimitTable:
    """The limits that the file says. Raises `ValueError` where it says anything else."""
    content = tomllib.loads(text)
    unknown = sorted(content.keys() - {"default", "tenant"})
    if unknown:
        raise ValueError(f"there is no table [{unknown[0]}]: expected [default] and [tenant.NAME]")
    default = _limits("default", content.get("default", {}), Limits())
    tenants = _table("tenant", content.get("tenant", {}))
    return LimitTable(default, {name: _limits(f"tenant.{name}", table, default) for name, table in tenants.items()})


def _limits(where: str, table: Any, default: Limits) -> Limits:
    given = {name: _value(f"{where}: {name}", name, value) for name, value in _table(where, table).items()}
    return dataclasses.replace(default, **given)


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a table")
    return value


def _value(where: str, name: str, value: Any) -> int | None:
    if name not in _NAMES:
        raise ValueError(f"{where}: there is no such limit; there are {', '.join(_NAMES)}")
    if value == "none":
        return None
    if type(value) is not int or value < 0:
        raise ValueError(f'{where} must be an integer of 0 or more, or "none"')
    return value
