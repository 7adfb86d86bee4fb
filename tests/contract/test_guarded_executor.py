"""The executor takes plans from its scheduler only, and each is sure of the other by its certificate."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from citybus.connection import HEALTH_CHECK, HEALTH_REQUEST, SERVING
from citybus.executor.v1 import executor_pb2 as pb
from citybus.executor.v1 import executor_pb2_grpc
from common.doorkeeper import TokenInterceptor
from common.grpc_server import GrpcServer
from common.metrics import ExecutorMetrics
from common.step import StepPlan
from common.tls import TlsFiles, channel_credentials, server_credentials
from executor_svc.__main__ import REFUSAL, SERVICE
from executor_svc.server import ExecutorServicer
from scheduler_svc.executor_client import ExecutorClient, Refused, SessionLost
from scheduler_svc.reach import reach
from tests.certificates import Authority
from tests.fakes import INFO, FakeExecutor

TIMEOUT_S = 30.0
TOKEN = "of-the-tests"

Connect = Callable[..., AbstractAsyncContextManager[ExecutorClient]]


@asynccontextmanager
async def executor(*, token: str | None = None, tls: TlsFiles | None = None) -> AsyncIterator[str]:
    """Where one listens."""
    servicer = ExecutorServicer(FakeExecutor(), ExecutorMetrics(CollectorRegistry()))
    server = GrpcServer(
        "127.0.0.1:0",
        services=[SERVICE],
        max_message_bytes=-1,
        interceptors=[] if token is None else [TokenInterceptor(token, f"/{SERVICE}/", REFUSAL)],
        credentials=None if tls is None else server_credentials(tls),
    )
    executor_pb2_grpc.add_ExecutorServiceServicer_to_server(servicer, server.server)
    try:
        yield f"127.0.0.1:{await server.start()}"
    finally:
        await server.server.stop(0)
        servicer.close()


@asynccontextmanager
async def client(
    address: str, *, token: str | None = None, tls: TlsFiles | None = None
) -> AsyncIterator[ExecutorClient]:
    made = ExecutorClient(address, token=token, credentials=None if tls is None else channel_credentials(tls))
    try:
        yield made
    finally:
        await made.close()


async def drive(scheduler: ExecutorClient) -> None:
    """Everything that a scheduler asks of an executor."""
    assert (await scheduler.describe(TIMEOUT_S)).epoch == INFO.epoch
    async with await scheduler.open(INFO.epoch, resume=True, timeout_s=TIMEOUT_S) as session:
        assert len(await scheduler.reconcile(TIMEOUT_S)) == 1
        await session.send(StepPlan(session.term, 1))
        assert (await session.receive()).step == 1


async def test_the_scheduler_with_the_token_is_let_in() -> None:
    async with executor(token=TOKEN) as address, client(address, token=TOKEN) as scheduler:
        await drive(scheduler)


@pytest.mark.parametrize("token", [None, "", "of-the-test", "of-the-testsx", "Bearer of-the-tests"])
async def test_nobody_else_gets_to_know_or_do_anything(token: str | None) -> None:
    async with executor(token=TOKEN) as address, client(address, token=token) as stranger:
        with pytest.raises(Refused, match="--executor-token-file") as caught:
            await stranger.describe(TIMEOUT_S)
        assert TOKEN not in str(caught.value)
        with pytest.raises(SessionLost, match="UNAUTHENTICATED"):
            await stranger.open(INFO.epoch, resume=False, timeout_s=TIMEOUT_S)
        with pytest.raises(SessionLost, match="UNAUTHENTICATED"):
            await stranger.reconcile(TIMEOUT_S)
        async with client(address, token=TOKEN) as scheduler:
            session = await scheduler.open(INFO.epoch, resume=True, timeout_s=TIMEOUT_S)
            assert session.term == 1, "the first to take the executor"


async def test_a_stranger_does_not_end_the_open_session() -> None:
    async with executor(token=TOKEN) as address, client(address, token=TOKEN) as scheduler:
        session = await scheduler.open(INFO.epoch, resume=True, timeout_s=TIMEOUT_S)
        async with grpc.aio.insecure_channel(address) as channel:
            call: Any = executor_pb2_grpc.ExecutorServiceStub(channel).Execute(timeout=TIMEOUT_S)
            with contextlib.suppress(grpc.aio.AioRpcError):  # it may have been refused before it said anything
                await call.write(pb.ExecuteRequest(open=pb.OpenSession(epoch=INFO.epoch)))
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        await session.send(StepPlan(session.term, 1))
        assert (await session.receive()).step == 1


async def test_a_scheduler_that_is_refused_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    turns = iter((True, True, False))
    async with executor(token=TOKEN) as address, client(address) as scheduler:
        assert await reach(scheduler, anew=True, epoch=None, may_go_on=lambda: next(turns)) is None
    said = capsys.readouterr().out
    assert said.count("waiting for the executor") == 1
    assert "error" in said
    assert "--executor-token-file" in said


async def test_health_is_open() -> None:
    async with executor(token=TOKEN) as address, grpc.aio.insecure_channel(address) as channel:
        check: Any = channel.unary_unary(HEALTH_CHECK)
        assert await check(HEALTH_REQUEST, timeout=TIMEOUT_S) != SERVING  # nobody has said so, and one may ask


class Parties:
    """An executor's and a scheduler's certificates, and those of nobody they know."""

    def __init__(self, folder: Path) -> None:
        self.good, self.other = Authority(folder, "good"), Authority(folder, "other")
        self.server, self.scheduler = self.good.issue("executor"), self.good.issue("scheduler", "scheduler")

    @property
    def mutual(self) -> TlsFiles:
        return TlsFiles(*self.server, self.good.ca)


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    return Parties(tmp_path_factory.mktemp("certificates"))


async def refused(address: str, tls: TlsFiles | None, words: str) -> None:
    async with client(address, tls=tls) as scheduler:
        with pytest.raises(SessionLost, match=words):
            await scheduler.describe(TIMEOUT_S)


async def test_tls(parties: Parties) -> None:
    async with executor(tls=TlsFiles(*parties.server, None)) as address:
        async with client(address, tls=TlsFiles(None, None, parties.good.ca)) as scheduler:
            await drive(scheduler)
        await refused(address, TlsFiles(None, None, parties.other.ca), "not of the CA that is trusted here")
        await refused(address, None, "it may expect TLS")


async def test_mutual_tls(parties: Parties) -> None:
    async with executor(tls=parties.mutual) as address:
        async with client(address, tls=TlsFiles(*parties.scheduler, parties.good.ca)) as scheduler:
            await drive(scheduler)
        for stranger in ((None, None), parties.other.issue("scheduler"), parties.good.issue("old", expired=True)):
            await refused(address, TlsFiles(*stranger, parties.good.ca), "a certificate of a CA that it trusts")
        await refused(address, None, "it may expect TLS")


@pytest.mark.parametrize(
    ("hosts", "expired", "words"),
    [((), True, "certificate has expired: give it a new one"), (("elsewhere",), False, "is for another name")],
)
async def test_a_certificate_that_does_not_count(
    parties: Parties, hosts: tuple[str, ...], expired: bool, words: str
) -> None:
    cert, key = parties.good.issue("bad", *hosts, expired=expired)
    async with executor(tls=TlsFiles(cert, key, None)) as address:
        await refused(address, TlsFiles(None, None, parties.good.ca), words)


async def test_tls_to_an_executor_that_has_none(parties: Parties) -> None:
    async with executor() as address:
        await refused(address, TlsFiles(None, None, parties.good.ca), "it speaks no TLS")
