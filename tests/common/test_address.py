"""Addresses to listen on."""

from __future__ import annotations

import socket

import pytest

from common.address import check_free, split
from common.errors import StartupError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        ("[::]:0", "::", 0),
        ("localhost:65535", "localhost", 65535),
    ],
)
def test_split(text: str, host: str, port: int) -> None:
    assert split(text) == (host, port)


@pytest.mark.parametrize("text", ["", "50051", ":50051", "localhost", "localhost:", "localhost:x", "h:65536", "h:-1"])
def test_what_is_not_an_address_is_refused(text: str) -> None:
    with pytest.raises(StartupError, match="is not an address to listen on: expected host:port"):
        split(text)


def test_a_held_port_is_not_free_until_it_is_let_go() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(StartupError, match=f"cannot listen on {taken}: .*use; stop what .* with --admin-listen"):
            check_free(taken, "--admin-listen")
    check_free(taken, "--admin-listen")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(StartupError, match=r"cannot listen on 192\.0\.2\.1:0: Cannot assign requested address"):
        check_free("192.0.2.1:0", "--listen")
