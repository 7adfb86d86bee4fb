"""The service over an executor that begins a step before it knows the tokens of the one before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future

import pytest

from common.step import NewSequence, Sampling, ScheduledSequence, StepPlan, StepResult
from tests.executor.service_client import TIMEOUT_S, Client
from tests.fakes import INFO, FakeExecutor, reference_output

PROMPT = tuple(range(20))
GREEDY = Sampling(temperature=0)
TOKENS = list(reference_output(PROMPT, 3, GREEDY, INFO.vocab_size))
NEW = NewSequence(1, PROMPT, len(PROMPT), 0, len(PROMPT), (0, 1), GREEDY)


class Device:
    """A step whose result is there when the test lets it arrive."""

    def __init__(self, result: StepResult) -> None:
        self.arrived = threading.Event()
        self.known: Future[StepResult] = Future()
        self.known.set_running_or_notify_cancel()
        self.waiting_thread: int | None = None
        self.asking_thread: int | None = None
        self._result = result

    def wait(self) -> None:
        self.waiting_thread = threading.get_ident()
        assert self.arrived.wait(TIMEOUT_S)

    def result(self) -> StepResult:
        self.asking_thread = threading.get_ident()
        assert self.arrived.wait(TIMEOUT_S)
        if not self.known.done():
            self.known.set_result(self._result)
        return self._result


class DeviceExecutor(FakeExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Device] = []
        self.threads: set[int] = set()
        self.gate = threading.Event()

    def open(self, epoch: bytes, resume: bool) -> int:
        for step in self.begun:
            step.result()
        return super().open(epoch, resume)

    def begin(self, plan: StepPlan) -> StepResult | Device:
        self.threads.add(threading.get_ident())
        if plan.finished_ids:  # as one that needs the tokens of those before it, and takes its time
            for step in self.begun:
                step.result()
            assert self.gate.wait(TIMEOUT_S)
            return self.step(plan)
        self.begun.append(Device(self.step(plan)))
        return self.begun[-1]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client(DeviceExecutor())
    await client.start()
    yield client
    for step in begun(client):
        step.arrived.set()
    assert isinstance(client.executor, DeviceExecutor)
    client.executor.gate.set()
    await client.stop()


def begun(client: Client) -> list[Device]:
    assert isinstance(client.executor, DeviceExecutor)
    return client.executor.begun


async def until_begun(client: Client, count: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while len(begun(client)) < count:
            await asyncio.sleep(0.005)


async def test_the_next_step_begins_while_one_is_waited_for(client: Client) -> None:
    session = await client.session()
    await session.send(new_sequences=(NEW,))
    await session.send(scheduled=(ScheduledSequence(1, 1),))
    await until_begun(client, 2)
    assert client.metric("executor_steps_total") == 0
    for step in reversed(begun(client)):
        step.arrived.set()
    results = [await session.result() for _ in range(2)]
    assert [result.step for result in results] == [1, 2]
    assert [result.sampled[0].token_id for result in results] == TOKENS[:2]
    assert client.metric("executor_steps_total") == 2
    assert isinstance(client.executor, DeviceExecutor)
    (engine,) = client.executor.threads
    assert {step.asking_thread for step in begun(client)} == {engine}
    assert engine not in {step.waiting_thread for step in begun(client)}


async def test_a_result_does_not_wait_for_the_step_behind_it(client: Client) -> None:
    session = await client.session()
    await session.send(new_sequences=(NEW,))
    await session.send(finished_ids=(1,))
    await until_begun(client, 1)
    begun(client)[0].arrived.set()
    assert (await session.result()).step == 1
    assert isinstance(client.executor, DeviceExecutor)
    client.executor.gate.set()
    assert (await session.result()).step == 2
    assert client.metric("executor_steps_total") == 2


async def test_steps_whose_scheduler_is_gone_are_counted(client: Client) -> None:
    older = await client.session()
    await older.send(new_sequences=(NEW,))
    await older.send(scheduled=(ScheduledSequence(1, 1),))
    await until_begun(client, 2)
    older.call.cancel()
    for step in begun(client):
        step.arrived.set()
    newer = await client.session(resume=True)
    assert client.metric("executor_steps_total") == 2
    assert client.metric("executor_computed_tokens_total", kind="decode") == 2
    (page,) = await client.pages()
    assert list(page.sequences[0].token_ids[20:]) == TOKENS[:2]
    newer.last_step = page.last_step
    await newer.send(scheduled=(ScheduledSequence(1, 1),))
    await until_begun(client, 3)
    begun(client)[-1].arrived.set()
    assert [token.token_id for token in (await newer.result()).sampled] == TOKENS[2:]


async def test_a_step_ends_when_it_has_been_computed_though_nobody_asks(client: Client) -> None:
    session = await client.session()
    await session.send(new_sequences=(NEW,))
    await until_begun(client, 1)
    session.call.cancel()
    begun(client)[0].arrived.set()
    async with asyncio.timeout(TIMEOUT_S):
        while client.metric("executor_steps_total") < 1:
            await asyncio.sleep(0.005)


async def test_the_step_of_an_older_session_is_told_and_counted_once(client: Client) -> None:
    older = await client.session()
    await older.send(new_sequences=(NEW,))
    await until_begun(client, 1)
    opening = asyncio.create_task(client.session(resume=True))
    begun(client)[0].arrived.set()
    await opening
    assert [token.token_id for token in (await older.result()).sampled] == TOKENS[:1]
    assert client.metric("executor_steps_total") == 1
