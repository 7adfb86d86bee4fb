"""What is wrong with certificate files is said at the start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from common.errors import StartupError
from common.tls import TlsFiles, channel_credentials, check_tls_options, explain_failure, server_credentials
from tests.certificates import Authority


def test_no_files_are_no_tls() -> None:
    assert server_credentials(TlsFiles(None, None, None)) is None
    assert channel_credentials(TlsFiles(None, None, None)) is None


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "good")
    (cert, key), (_, other) = authority.issue("one"), authority.issue("two")
    assert server_credentials(TlsFiles(cert, key, authority.ca)) is not None
    assert channel_credentials(TlsFiles(cert, key, authority.ca)) is not None
    for make in (server_credentials, channel_credentials):
        with pytest.raises(StartupError, match=f"{cert} and {other} are no certificate with its key"):
            make(TlsFiles(cert, other, authority.ca))


def test_files_that_are_none_of_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "good")
    cert, key = authority.issue("one")
    junk = tmp_path / "junk"
    junk.write_text("junk")
    with pytest.raises(StartupError, match=f"{junk} holds no certificate of a CA"):
        channel_credentials(TlsFiles(None, None, junk))
    with pytest.raises(StartupError, match="absent holds no certificate of a CA: No such file"):
        server_credentials(TlsFiles(cert, key, tmp_path / "absent"))
    with pytest.raises(StartupError, match="No such file"):
        server_credentials(TlsFiles(tmp_path / "absent", key, None))


def test_options_that_belong_together() -> None:
    def check(**given: Path) -> None:
        settings = {"tls_cert": None, "tls_key": None, "tls_client_ca": None} | given
        check_tls_options(SimpleNamespace(**settings), "tls_cert", "tls_key", "tls_client_ca")

    path = Path("any")
    check()
    check(tls_cert=path, tls_key=path)
    check(tls_cert=path, tls_key=path, tls_client_ca=path)
    for alone in ("tls_cert", "tls_key"):
        with pytest.raises(ValueError, match="--tls-cert and --tls-key belong together"):
            check(**{alone: path})
    with pytest.raises(ValueError, match="--tls-client-ca needs --tls-cert"):
        check(tls_client_ca=path)


def test_what_has_nothing_to_do_with_tls_stays_as_it_is() -> None:
    assert explain_failure("Connection refused") == "Connection refused"
