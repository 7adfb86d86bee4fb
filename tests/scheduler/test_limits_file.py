"""The file with the limits of tenants."""

from __future__ import annotations

import pytest

from scheduler_svc.limits_file import parse_limits
from scheduler_svc.quotas import Limits


def test_what_a_tenant_leaves_out_is_as_in_the_default() -> None:
    table = parse_limits(
        """
        [default]
        max_requests = 4
        tokens_per_minute = 1_000

        [tenant.alice]
        max_queued_tokens = 0

        [tenant."night jobs"]
        max_requests = 64
        tokens_per_minute = "none"
        """
    )
    assert table.of("bob") == table.of("") == Limits(max_requests=4, tokens_per_minute=1000)
    assert table.of("alice") == Limits(max_requests=4, tokens_per_minute=1000, max_queued_tokens=0)
    assert table.of("night jobs") == Limits(max_requests=64)


def test_an_empty_file_limits_nobody() -> None:
    assert parse_limits("").of("alice") == Limits()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("max_requests = 4", r"there is no table \[max_requests\]"),
        ("[tenants.alice]", r"there is no table \[tenants\]: expected \[default\] and \[tenant.NAME\]"),
        ("default = 4", "default must be a table"),
        ("tenant = 4", "tenant must be a table"),
        ("[tenant]\nalice = 4", "tenant.alice must be a table"),
        ("[default]\nmax_request = 4", "default: max_request: there is no such limit; there are max_requests, max_q"),
        ("[tenant.alice]\nmax_requests = -1", "tenant.alice: max_requests must be an integer of 0 or more, or"),
        ("[default]\nmax_requests = 1.5", "must be an integer"),
        ("[default]\nmax_requests = true", "must be an integer"),
        ("[default]\nmax_requests = 'no'", "must be an integer"),
        ("[default", "at end of document|Expected"),
    ],
)
def test_anything_else_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_limits(text)
