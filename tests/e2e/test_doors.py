"""A bus whose doors are locked: certificates, keys, tokens and limits, and nothing of them to be seen from outside."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from citybus import Client, Exhausted, FinishReason, InvalidRequest, PermissionDenied, Tls, Unauthenticated
from citybus.connection import open_channel
from citybus.errors import Insecure
from citybus.executor.v1 import executor_pb2, executor_pb2_grpc
from citybus.keys import add_line, make_key
from tests.certificates import Authority
from tests.harness import ROOT, START_S, Service, wait_until

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
LIMITS = """
[tenant.narrow]
max_requests = 1

[tenant.four]
max_requests = 4
"""


@dataclass
class Fortress:
    """Both services with mutual TLS, the scheduler with keys and an admin token, in a folder with their files."""

    folder: Path
    model: Path
    keys: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        authority = Authority(self.folder, "good")
        self.ca, self.own = authority.ca, authority.issue("client", "client")
        self.keys_file = self.folder / "keys.jsonl"
        for tenant in ("alice", "bob", "narrow", "four"):
            self.add_key(tenant)
        self.admin_token = self.write("admin.token", secrets.token_urlsafe(16))
        limits = self.write("limits.toml", LIMITS)
        server = _flags("tls", *authority.issue("server"), client_ca=self.ca)
        token = self.folder / "run" / "executor.token"
        size = ("--num-threads=1", "--num-blocks=1024")
        self.executor = self.start("executor_svc", *server, f"--token-file={token}", *size)
        self.token = token.read_text().strip()
        assert token.stat().st_mode & 0o777 == 0o600
        try:
            self.scheduler = self.start(
                "scheduler_svc",
                *server,
                *_flags("executor", *authority.issue("scheduler", "scheduler"), ca=self.ca),
                f"--executor={self.executor.address}",
                f"--executor-token-file={token}",
                f"--keys-file={self.keys_file}",
                f"--limits-file={limits}",
                f"--admin-token-file={self.admin_token}",
                f"--journal={self.folder / 'journal'}",
                "--admin-listen=127.0.0.1:0",
            )
        except BaseException:
            self.executor.kill()
            raise

    @property
    def tls(self) -> Tls:
        return Tls(self.ca, *self.own)

    def start(self, module: str, *flags: str) -> Service:
        metrics = "--metrics-listen=127.0.0.1:0"
        return Service(module, self.folder / f"{module}.log", f"--model={self.model}", metrics, *flags)

    def write(self, name: str, content: str) -> Path:
        (self.folder / name).write_text(content)
        return self.folder / name

    def add_key(self, tenant: str) -> None:
        self.keys[tenant], line = make_key(tenant)
        add_line(self.keys_file, line)

    def client(self, tenant: str) -> Client:
        client = Client(self.scheduler.address, api_key=self.keys[tenant], tls=self.tls)
        client.wait_ready(START_S)
        return client

    def live(self) -> int:
        """Requests that run or wait."""
        return sum(int(self.scheduler.metric(f"num_requests_{state}")) for state in ("running", "waiting"))

    def close(self) -> None:
        self.scheduler.kill()
        self.executor.kill()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        files = {"CA": self.ca, "CERT": self.own[0], "KEY": self.own[1]}
        variables = {f"CITYBUS_TLS_{name}": str(path) for name, path in files.items()}
        command, environment = [sys.executable, "-m", "citybus", *arguments], os.environ | variables
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def _flags(prefix: str, cert: Path, key: Path, **more: Path) -> list[str]:
    files = {"cert": cert, "key": key, **more}
    return [f"--{prefix}-{name.replace('_', '-')}={path}" for name, path in files.items()]


@pytest.fixture(scope="module")
def fortress(counting: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fortress]:
    with closing(Fortress(tmp_path_factory.mktemp("fortress"), counting)) as made:
        yield made


def test_who_has_everything_is_served(fortress: Fortress) -> None:
    with fortress.client("alice") as alice, fortress.client("bob") as bob:
        answer = alice.complete("abc", max_tokens=5, **GREEDY)
        assert answer.token_ids == bob.complete("abc", max_tokens=5, **GREEDY).token_ids
        assert len(answer.token_ids) == 5
        with pytest.raises(PermissionDenied, match="the API key is another tenant's"):
            bob.complete("abc", tenant="alice")
        assert len(alice.models()) == 1


def test_strangers_are_told_what_they_lack(fortress: Fortress) -> None:
    address = fortress.scheduler.address
    for tls, words in ((None, "may expect TLS"), (Tls(fortress.ca), "a certificate that it trusts")):
        with Client(address, api_key=fortress.keys["alice"], tls=tls) as client, pytest.raises(Insecure, match=words):
            client.models()
    for key in ("", "citybus_000000000000_" + "0" * 64, fortress.token):
        with Client(address, api_key=key, tls=fortress.tls) as client:
            with pytest.raises(Unauthenticated, match="CITYBUS_API_KEY"):
                client.complete("abc")
            client.wait_ready(10)  # health is open to whoever has a certificate


def test_reflection_is_open_to_whoever_has_a_certificate(fortress: Fortress) -> None:
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    for address, service in (
        (fortress.scheduler.address, "citybus.v1.GenerationService"),
        (fortress.executor.address, "citybus.executor.v1.ExecutorService"),
    ):
        with open_channel(address, tls=fortress.tls) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            (answer,) = stub.ServerReflectionInfo(iter((question,)), timeout=10)
        assert service in [each.name for each in answer.list_services_response.service]


def test_the_executor_listens_to_its_scheduler_only(fortress: Fortress) -> None:
    request = executor_pb2.ReconcileRequest()
    for tls, code in ((None, "UNAVAILABLE"), (fortress.tls, "UNAUTHENTICATED")):
        with open_channel(fortress.executor.address, tls=tls) as channel:
            stub = executor_pb2_grpc.ExecutorServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Reconcile(request, timeout=10))
            assert caught.value.code().name == code
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Execute(iter(()), timeout=10))
            assert caught.value.code().name == code
    with fortress.client("alice") as client:
        assert client.complete("abc", max_tokens=3, **GREEDY).finish.reason is FinishReason.LENGTH


def test_operators_come_in_with_a_certificate_and_the_token(fortress: Fortress) -> None:
    address = ("--admin-address", fortress.scheduler.facts["admin_listen"])
    allowed = fortress.command("policy", "list", *address, "--admin-token-file", str(fortress.admin_token))
    assert "* fcfs" in allowed.stdout, allowed.stderr
    assert "the admin token is missing or wrong" in fortress.command("policy", "list", *address).stderr
    assert fortress.command("status", "--once", "--interval=0.05", *address).returncode == 0
    assert fortress.command("health", "--address", fortress.executor.address).returncode == 0


def test_keys_count_as_soon_as_they_are_written_and_no_longer_than_they_are(fortress: Fortress) -> None:
    fortress.add_key("carol")
    with fortress.client("carol") as carol, fortress.client("alice") as alice:
        carol.complete("abc", max_tokens=1)
        lines = fortress.keys_file.read_text().splitlines()
        fortress.keys_file.write_text("\n".join(lines[:-1]) + "\n")
        with pytest.raises(Unauthenticated):
            carol.complete("abc", max_tokens=1)
        with fortress.keys_file.open("a") as file:
            file.write("half a line")
        alice.complete("abc", max_tokens=1)
        fortress.keys_file.write_text("\n".join(lines) + "\n")
        carol.complete("abc", max_tokens=1)


def test_limits_count_what_another_scheduler_has_accepted(fortress: Fortress) -> None:
    with fortress.client("narrow") as client, fortress.client("alice") as other:
        stream = client.generate(token_ids=[7], **GREEDY)
        next(stream)
        fortress.scheduler.kill()
        fortress.scheduler.restart()
        client.wait_ready(START_S)
        with pytest.raises(Exhausted, match="max_requests") as caught:
            client.complete(token_ids=[8], max_tokens=1)
        assert caught.value.retry_after_s == 1.0
        other.complete(token_ids=[8], max_tokens=1)
        assert next(stream).token_ids, "it goes on"
        stream.cancel()
        wait_until(lambda: has_room(client), "its seat is free", 10)


def test_every_end_of_a_request_gives_its_seat_back(fortress: Fortress) -> None:
    with fortress.client("four") as client:
        for _ in range(3):
            ends = [
                client.complete(token_ids=[7], stop=["*"], **GREEDY),
                client.complete(token_ids=[7], stop_token_ids=[20], **GREEDY),
                client.complete(token_ids=[7], max_tokens=3, **GREEDY),
                client.complete(token_ids=[7], time_limit_ms=50, **GREEDY),
            ]
            reasons = [FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH, FinishReason.DEADLINE]
            assert [end.finish.reason for end in ends] == reasons
            with pytest.raises(InvalidRequest):
                client.complete(token_ids=[7] * 20_000)  # more than the pool holds
            with pytest.raises(InvalidRequest):
                client.complete(token_ids=[999])
            client.count_tokens("abc")
        for _ in range(2):
            streams = [client.generate(token_ids=[seat], **GREEDY) for seat in range(4)]
            assert all(next(stream).token_ids for stream in streams)
            with pytest.raises(Exhausted, match="the tenant has 4 requests, and may have 4 at once"):
                client.complete(token_ids=[9], max_tokens=1)
            for stream in streams:
                stream.cancel()
            wait_until(lambda: has_room(client), "a seat is free", 10)
            wait_until(lambda: fortress.live() == 0, "all have ended", 10)


def has_room(client: Client) -> bool:
    try:
        client.complete(token_ids=[8], max_tokens=1)
    except Exhausted:
        return False
    return True


def test_secrets_are_in_no_log_command_line_environment_or_metric(fortress: Fortress) -> None:
    """After all that went before, and of processes that have a command line of their own."""
    for service in (fortress.executor, fortress.scheduler):
        service.kill()
        service.restart()
    hidden = {*fortress.keys.values(), *(key.rpartition("_")[2] for key in fortress.keys.values())}
    hidden |= {fortress.token, fortress.admin_token.read_text()}
    shown = []
    for service in (fortress.executor, fortress.scheduler):
        process = Path(f"/proc/{service.process.pid}")
        url = f"http://127.0.0.1:{service.facts['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as page:
            metrics = page.read().decode()
        assert "citybus:" in metrics
        command = (process / "cmdline").read_text()
        assert "token-file" in command
        shown += [metrics, command, (process / "environ").read_text(), service.log.read_text()]
    table = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=False)
    for text in (*shown, table.stdout):
        assert not any(secret in text for secret in hidden)
