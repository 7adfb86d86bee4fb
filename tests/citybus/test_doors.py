"""Clients that show who they are, and are sure of who is there."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from citybus import AsyncClient, CitybusError, Client, Tls
from citybus.bench.server import Pool
from citybus.cli import bench
from citybus.cli.bench.options import server_of, target_of
from citybus.connection import API_KEY_VARIABLE
from citybus.errors import Insecure
from scheduler_svc.api_keys import parse_keys
from tests.certificates import Authority
from tests.citybus.conftest import Served
from tests.citybus.scripted_server import ScriptedServer, serving
from tests.citybus.serving import CITYBUS


def run(*arguments: str, expect: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CITYBUS_")} | variables
    done = subprocess.run([*CITYBUS, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == expect, done.stderr
    return done


def sent(served: Served) -> set[str | None]:
    """What the calls so far have brought as `authorization`, each method's."""
    return {value for _, value in served.server.authorizations}


def use(address: str, api_key: str | None) -> None:
    with Client(address, api_key=api_key) as client:
        client.models()
        client.count_tokens("a b")
        client.complete("a b")
        with client.generate("forever") as stream:
            next(stream)


async def use_async(address: str, api_key: str | None) -> None:
    async with AsyncClient(address, api_key=api_key) as client:
        await client.models()
        await client.count_tokens("a b")
        await client.complete("a b")
        async with client.generate("forever") as stream:
            await anext(stream)


USES: list[Callable[[str, str | None], None]] = [use, lambda address, key: asyncio.run(use_async(address, key))]


@pytest.mark.parametrize("use", USES)
def test_every_call_brings_the_key(served: Served, use: Callable[[str, str | None], None]) -> None:
    use(served.address, "secret-1")
    methods = {method.rpartition("/")[2] for method, _ in served.server.authorizations}
    assert methods == {"Generate", "ListModels", "CountTokens", "Cancel"}
    assert sent(served) == {"Bearer secret-1"}


@pytest.mark.parametrize("use", USES)
def test_the_key_of_the_environment(
    served: Served, use: Callable[[str, str | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "secret-2")
    use(served.address, None)
    assert sent(served) == {"Bearer secret-2"}
    served.server.authorizations.clear()
    use(served.address, "")
    assert sent(served) == {None}, "an empty key is none"


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel"])
def test_a_key_that_cannot_be_sent_is_not_quoted(key: str) -> None:
    with pytest.raises(ValueError, match=API_KEY_VARIABLE) as caught:
        Client(api_key=key)
    assert key not in str(caught.value)


def test_commands_take_the_key_from_a_file_or_the_environment(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("secret-3\n")
    asked = ("generate", "hi", "--address", served.address)
    run(*asked, "--api-key-file", str(path))
    assert sent(served) == {"Bearer secret-3"}
    served.server.authorizations.clear()
    run(*asked, CITYBUS_API_KEY="secret-4")
    assert sent(served) == {"Bearer secret-4"}
    absent = run(*asked, "--api-key-file", str(tmp_path / "absent"), expect=1)
    assert absent.stderr.startswith(f"citybus: the API key cannot be read from {tmp_path}/absent: ")
    path.write_text("\n")
    assert "must hold one line, the API key" in run(*asked, "--api-key-file", str(path), expect=1).stderr
    assert run(*asked, "--api-key", "x", expect=2).stderr == (
        "citybus generate: unknown argument '--api-key' (did you mean '--api-key-file'?); see 'citybus generate "
        "--help'\n"
    )


def test_keys_new_prints_a_key_once_and_keeps_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "state" / "keys.jsonl"
    first, second = (run("keys", "new", "--tenant", name, "--file", str(path)) for name in ("alice", "bob"))
    keys = parse_keys(path.read_text())
    assert keys.tenant_of(first.stdout.strip().encode()) == "alice"
    assert keys.tenant_of(second.stdout.strip().encode()) == "bob"
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"--keys-file {path}" in first.stderr
    for done in (first, second):
        assert done.stdout.strip() not in done.stderr
        assert done.stdout.strip().rpartition("_")[2] not in path.read_text()
    by_default = run("keys", "new", "--tenant", "carol", XDG_STATE_HOME=str(tmp_path / "home"))
    kept = (tmp_path / "home" / "citybus" / "keys.jsonl").read_text()
    assert parse_keys(kept).tenant_of(by_default.stdout.strip().encode()) == "carol"
    assert "printable ASCII" in run("keys", "new", "--tenant", "", "--file", str(path), expect=1).stderr
    assert "cannot be written" in run("keys", "new", "--tenant", "a", "--file", str(tmp_path), expect=1).stderr


class Secured:
    """A scripted server with a certificate, and files of those who may and may not connect."""

    def __init__(self, folder: Path) -> None:
        self.good, self.other = Authority(folder, "good"), Authority(folder, "other")
        self.client = self.good.issue("client", "client")

    @contextmanager
    def serving(self, *hosts: str, expired: bool = False, mutual: bool = False) -> Iterator[str]:
        cert, key = self.good.issue("server", *hosts, expired=expired)
        ca = self.good.ca if mutual else None
        with serving(ScriptedServer(), tls=(cert, key, ca)) as address:
            yield address


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    return Secured(tmp_path_factory.mktemp("certificates"))


def ask(address: str, tls: Tls | None) -> None:
    with Client(address, tls=tls) as client:
        assert client.complete("hi").text == "The capital of France is Paris."


async def ask_async(address: str, tls: Tls | None) -> None:
    async with AsyncClient(address, tls=tls) as client:
        assert (await client.complete("hi")).text == "The capital of France is Paris."


ASKS: list[Callable[[str, Tls | None], None]] = [ask, lambda address, tls: asyncio.run(ask_async(address, tls))]


def refused(address: str, tls: Tls | None, words: str) -> None:
    for each in ASKS:
        with pytest.raises(Insecure, match=f"no secure connection to the server at {address}: .*{words}"):
            each(address, tls)


@pytest.mark.parametrize("ask", ASKS)
def test_tls_and_mutual_tls(secured: Secured, ask: Callable[[str, Tls | None], None]) -> None:
    with secured.serving() as address:
        ask(address, Tls(secured.good.ca))
        ask(address, Tls(str(secured.good.ca), *map(str, secured.client)))
    with secured.serving(mutual=True) as address:
        ask(address, Tls(secured.good.ca, *secured.client))


def test_who_is_not_trusted_is_told_why(secured: Secured) -> None:
    with secured.serving() as address:
        refused(address, Tls(secured.other.ca), "of no CA that is trusted here: name its CA")
        refused(address, Tls(), "of no CA that is trusted here")
        refused(address, None, "it may expect TLS .then name its CA.")
    with secured.serving(expired=True) as address:
        refused(address, Tls(secured.good.ca), "its certificate has expired")
    with secured.serving("elsewhere") as address:
        refused(address, Tls(secured.good.ca), "its certificate is for another name")
    with secured.serving(mutual=True) as address:
        for own in ((None, None), secured.other.issue("client"), secured.good.issue("old", expired=True)):
            refused(address, Tls(secured.good.ca, *own), "a certificate that it trusts of this client")
    with serving(ScriptedServer()) as address:
        refused(address, Tls(secured.good.ca), "it speaks no TLS")


def test_commands_over_tls(secured: Secured) -> None:
    ca, (cert, key) = secured.good.ca, secured.client
    with secured.serving(mutual=True) as address:
        flags = ("--tls-ca", str(ca), "--tls-cert", str(cert), "--tls-key", str(key))
        assert "Paris" in run("generate", "hi", "--address", address, *flags).stdout
        variables = {"CITYBUS_TLS_CA": str(ca), "CITYBUS_TLS_CERT": str(cert), "CITYBUS_TLS_KEY": str(key)}
        run("health", "--address", address, **variables)
        run("status", "--once", "--interval=0.05", "--admin-address", address, **variables)
        unhealthy = run("health", "--address", address, "--timeout=1", expect=1).stderr
        assert f"ready at {address} within 1 s: no secure connection" in unhealthy
        plain = run("generate", "hi", "--address", address, expect=1).stderr
        assert plain.startswith(f"citybus: no secure connection to the server at {address}: it closed the connection")
        assert plain.endswith("; options for that are --tls-ca, --tls-cert and --tls-key\n")
        assert "set --tls-ca" in run("generate", "hi", "--tls-cert", str(cert), expect=1).stderr
        assert "belong together" in run("generate", "hi", "--tls-ca", str(ca), "--tls-key", str(key), expect=1).stderr


@pytest.mark.parametrize("command", [bench.serve, bench.compare, bench.cost])
def test_benchmarks_over_tls_with_a_key(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: ModuleType
) -> None:
    (tmp_path / "key").write_text("secret-5\n")
    parser = argparse.ArgumentParser()
    monkeypatch.setenv("CITYBUS_TLS_CA", str(secured.good.ca))
    command.configure(parser)
    server = ScriptedServer()
    cert, key = secured.good.issue("server")
    with serving(server, tls=(cert, key, secured.good.ca)) as address:
        flags = ("--tls-cert", str(secured.client[0]), "--tls-key", str(secured.client[1]), "--price-per-hour=1")
        addresses = ("--address", address, "--admin-address", address, "--api-key-file", str(tmp_path / "key"))
        target = target_of(server_of(parser.parse_known_args([*flags, *addresses])[0]))
    assert (target.model.name, target.pool) == ("tiny", Pool(100, 16, 64))
    assert [sent for method, sent in server.authorizations if "ListModels" in method] == ["Bearer secret-5"]


def test_files_of_no_use(secured: Secured, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tls: .*absent cannot be read: No such file"):
        Client(tls=Tls(tmp_path / "absent"))
    with pytest.raises(ValueError, match="belong together"):
        Tls(secured.good.ca, cert=secured.client[0])
    assert issubclass(Insecure, CitybusError)
