"""The service over an executor that begins a step before it knows the tokens of the one before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

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
        self.waiting_thread: int | None = None
        self.asking_thread: int | None = None
        self._result = result

    def wait(self) -> None:
        self.waiting_thread = threading.get_ident()
        assert self.arrived.wait(TIMEOUT_S)

    def result(self) -> StepResult:
        self.asking_thread = threading.get_ident()
        assert self.arrived.wait(TIMEOUT_S)
        return self._result


class DeviceExecutor(FakeExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Device] = []
        self.threads: set[int] = set()

    def begin(self, plan: StepPlan) -> StepResult | Device:
        self.threads.add(threading.get_ident())
        self.begun.append(Device(self.step(plan)))
        return self.begun[-1]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client(DeviceExecutor())
    await client.start()
    yield client
    for step in begun(client):
        step.arrived.set()
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


async def test_a_newer_session_gets_its_turn_while_the_older_waits_for_a_result(client: Client) -> None:
    older = await client.session()
    await older.send(new_sequences=(NEW,))
    await until_begun(client, 1)
    begun(client)[0].arrived.set()
    assert (await older.result()).step == 1
    await older.send(scheduled=(ScheduledSequence(1, 1),))
    await until_begun(client, 2)
    opening = asyncio.create_task(client.session(resume=True))
    await asyncio.sleep(0.05)
    assert not opening.done(), "what is resident is not known before the step has ended"
    begun(client)[1].arrived.set()
    await opening
    assert [token.token_id for token in (await older.result()).sampled] == TOKENS[1:2]
    assert client.metric("executor_steps_total") == 2
