"""API keys: as the command makes them, and as the scheduler knows them again."""

from __future__ import annotations

import json

import pytest

from citybus.keys import make_key
from scheduler_svc.api_keys import parse_keys


def test_a_key_stands_for_its_tenant() -> None:
    (alice, alices), (bob, bobs), (second, seconds) = make_key("alice"), make_key("bob"), make_key("alice")
    keys = parse_keys(f"{alices}\n\n{bobs}\n{seconds}\n")
    assert [keys.tenant_of(key.encode()) for key in (alice, bob, second)] == ["alice", "bob", "alice"]
    assert len({alice, bob, second}) == 3


def test_what_is_kept_does_not_hold_the_key() -> None:
    key, line = make_key("alice")
    secret = key.rpartition("_")[2]
    assert len(bytes.fromhex(secret)) == 32
    assert secret not in line
    assert json.loads(line).keys() == {"id", "tenant", "salt", "sha256"}
    assert json.loads(line)["id"] == key.split("_")[1]


def test_what_is_no_key_stands_for_nobody() -> None:
    key, line = make_key("alice")
    keys = parse_keys(line)
    changed = key[:-1] + ("0" if key[-1] != "0" else "1")
    other_id = "citybus_" + "0" * 12 + key[20:]
    for wrong in (
        "",
        "citybus_",
        changed,
        other_id,
        key + "0",
        key[:-1],
        key.upper(),
        f" {key}",
        json.loads(line)["sha256"],
    ):
        assert keys.tenant_of(wrong.encode()) is None, wrong
    assert parse_keys("").tenant_of(key.encode()) is None
    assert keys.tenant_of(b"\xff\xfe") is None


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "{}",
        '{"id": "0", "tenant": "", "salt": "", "sha256": ""}',
        '{"id": "0", "tenant": 7, "salt": "", "sha256": ""}',
        '{"id": "0", "tenant": "alice", "salt": "xy", "sha256": ""}',
    ],
)
def test_a_line_that_is_no_key_is_named_and_not_quoted(line: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2 is no key as 'citybus keys new' writes it$"):
        parse_keys(f"{make_key('alice')[1]}\n{line}\n")


@pytest.mark.parametrize("tenant", ["", "x" * 129, "a\nb", "schöne"])
def test_a_name_of_no_tenant(tenant: str) -> None:
    with pytest.raises(ValueError, match="1 to 128 printable ASCII characters"):
        make_key(tenant)
