"""Where the scheduler may listen, and what it says where it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from citybus.keys import add_line, make_key
from common.errors import StartupError
from executor_svc.__main__ import check_settings as check_executor
from executor_svc.config import Config as ExecutorConfig
from scheduler_svc.config import Config
from scheduler_svc.doors import check_doors, executor_client, read_rules
from scheduler_svc.quotas import Limits
from tests.certificates import Authority

ANYWHERE = ("0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.org:0")


def check(**options: Any) -> None:
    check_doors(Config(model=Path("any"), **options), {})


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    add_line(tmp_path / "keys", make_key("alice")[1])
    return tmp_path / "keys"


@pytest.mark.parametrize("listen", ANYWHERE)
def test_nobody_is_served_unasked_from_elsewhere(listen: str, keys: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"--keys-file; listen on 127\.0\.0\.1; or, .* set --insecure-bind"):
        check(listen=listen)
    check(listen=listen, keys_file=keys)
    check(listen=listen, insecure_bind=True)
    authority = Authority(tmp_path, "good")
    cert, key = authority.issue("server")
    with pytest.raises(StartupError, match="--insecure-bind"):
        check(listen=listen, tls_cert=cert, tls_key=key)
    check(listen=listen, tls_cert=cert, tls_key=key, tls_client_ca=authority.ca)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
def test_on_this_machine_nothing_is_needed(listen: str) -> None:
    check(listen=listen)
    assert Config(model=Path("any")).listen.startswith("127.0.0.1:")


def test_the_executor_too(tmp_path: Path) -> None:
    for listen in ANYWHERE:
        with pytest.raises(StartupError, match="set --token-file, and --executor-token-file of the scheduler; listen"):
            check_executor(ExecutorConfig(model=tmp_path, listen=listen))
    for allowed in ({"token_file": tmp_path / "token"}, {"insecure_bind": True}):
        check_executor(ExecutorConfig(model=tmp_path, listen="0.0.0.0:0", **allowed))  # type: ignore[arg-type]
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_keys_over_an_open_network_are_warned_of(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(listen="0.0.0.0:0", keys_file=keys)
    assert "API keys travel unencrypted: set --tls-cert and --tls-key" in capsys.readouterr().out
    check(listen="127.0.0.1:0", keys_file=keys)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("option", ["keys_file", "limits_file"])
def test_a_file_that_is_not_there_is_found_out_at_the_start(option: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=f"--{option.replace('_', '-')}: {tmp_path}/absent.*No such file"):
        check(**{option: tmp_path / "absent"})


def test_the_token_of_the_executor_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="the executor's token cannot be read from"):
        executor_client(Config(model=tmp_path, executor_token_file=tmp_path / "absent"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tls_cert": Path("c")}, "--tls-cert and --tls-key belong together"),
        ({"tls_client_ca": Path("c")}, "--tls-client-ca needs --tls-cert"),
        ({"executor_key": Path("c"), "executor_ca": Path("c")}, "--executor-cert and --executor-key belong together"),
        ({"executor_cert": Path("c"), "executor_key": Path("c")}, "--executor-cert needs --executor-ca"),
    ],
)
def test_options_that_belong_together(options: dict[str, Path], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Config(model=Path("any"), **options)


def test_limits_change_with_their_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[default]\nmax_requests = 1\n")
    rules = read_rules(Config(model=tmp_path, limits_file=path))
    assert rules.limits_of("alice") == Limits(max_requests=1)
    path.write_text("[default]\nmax_requests = 10\n[tenant.bob]\nmax_queued_tokens = 5\n")
    assert rules.limits_of("alice") == Limits(max_requests=10)
    assert rules.limits_of("bob") == Limits(max_requests=10, max_queued_tokens=5)
    assert read_rules(Config(model=tmp_path)).limits_of("alice") == Limits()
