"""Large messages: a client's up to the stated limit, those between the services without one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from citybus import Client, Exhausted
from citybus.v1 import generation_pb2 as pb
from common import wire
from common.resident import ResidentPage
from common.step import ExecutorInfo, SampledToken, StepPlan, StepResult
from scheduler_svc.executor_client import ExecutorClient
from tests.checkpoints import write_chain
from tests.contract.wire_executor import Served
from tests.e2e.field_cases.conftest import SCRIPT
from tests.e2e.field_cases.field import Field, InProcess, running_field, scheduler_field
from tests.fakes import INFO, FakeExecutor
from tests.harness import wait_until
from tests.plan_check import Resident, Row

LIMIT = 16 * 2**20
GRPC_DEFAULT = 4 * 2**20


@pytest.fixture(scope="module")
def terse_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("terse-bus")
    model = write_chain(folder / "terse", SCRIPT, max_model_len=64, chat_template="{{ messages[-1].content }}")
    flags = ("--max-request-bytes", LIMIT)
    with running_field(model, folder / "bus", executor=("--num-blocks", 64), scheduler=flags) as field:
        yield field


@pytest.fixture
def terse_field(terse_session: Field) -> Iterator[Field]:
    """CHAIN whose template leaves out all of a conversation but its last message."""
    yield terse_session
    terse_session.check()


def conversation(num_bytes: int) -> list[dict[str, str]]:
    """One whose request takes so many bytes on the wire."""
    messages = [{"role": "user", "content": ""}, {"role": "user", "content": "@"}]
    for _ in range(2):  # the second time the length of the length is right
        request = pb.GenerateRequest(chat=pb.ChatPrompt(messages=[pb.ChatMessage(**each) for each in messages]))
        messages[0]["content"] += "x" * (num_bytes - request.ByteSize())
    return messages


@pytest.mark.parametrize("num_bytes", [3_900_000, 4_100_000, LIMIT - 100])
def test_F37_message_up_to_the_limit_is_served(terse_field: Field, num_bytes: int) -> None:
    answer = terse_field.client.complete(messages=conversation(num_bytes))  # type: ignore[arg-type]
    assert answer.text == "ABCDEFG"
    assert answer.finish.usage.prompt_tokens == 1


@pytest.mark.parametrize("num_bytes", [LIMIT + 100, 2 * LIMIT])
def test_F37_message_over_the_limit_is_refused(terse_field: Field, num_bytes: int) -> None:
    with terse_field.client.generate("@", max_tokens=60, temperature=0, ignore_eos=True) as neighbour:
        next(neighbour)
        with Client(terse_field.bus.address) as client, pytest.raises(Exhausted):
            client.complete("x" * num_bytes)
        assert sum(len(delta.token_ids) for delta in neighbour) == 59


class Blind(FakeExecutor):
    """Computes nothing: every token is 7. It holds up its steps until `opened`, and keeps the plans."""

    def __init__(self, info: ExecutorInfo) -> None:
        super().__init__(info)
        self.opened = threading.Event()
        self.plans: list[StepPlan] = []

    def _compute(self, plan: StepPlan, rows: list[Row]) -> tuple[SampledToken, ...]:
        self.plans.append(plan)
        assert self.opened.wait(60)
        for new in plan.new_sequences:
            self.sequences[new.sequence_id] = Resident.of(new)
        for row in rows:
            held = self.sequences[row.sequence_id]
            held.blocks[:], held.computed = row.blocks, row.end
            if row.end == row.known:
                held.tokens.append(7)
        return tuple(SampledToken(row.sequence_id, 7) for row in rows if row.end == row.known)


def test_F37_plan_of_any_size_reaches_the_executor(tmp_path: Path) -> None:
    """Sixteen prompts of 64,000 tokens with block tables of 8,000, four bytes a token, board in one step."""
    facts = replace(INFO, vocab_size=2**22, max_model_len=65_536, block_size=8, num_blocks=2**18)
    executor = Blind(replace(facts, max_step_tokens=2**21))
    prompts = [tuple(range(2**21 + seat, 2**21 + seat + 63_990)) for seat in range(16)]
    model = write_chain(tmp_path / "chain", {})
    with Served(executor) as served:
        executor.opened.set()
        with scheduler_field(model, tmp_path / "bus", InProcess(served.target), "--window", 1) as field:
            executor.opened.clear()
            first = field.start([1, 2, 3], 5)
            rides = [field.start(prompt, 3) for prompt in prompts]
            wait_until(lambda: field.bus.status().waiting >= len(prompts), "all are queued", 60)
            executor.opened.set()
            assert first.read().token_ids == (7,) * 5
            assert [ride.read().token_ids for ride in rides] == [(7,) * 3] * len(rides)
            field.check()
    largest = max(executor.plans, key=lambda plan: plan.num_tokens)
    assert {new.token_ids for new in largest.new_sequences} == set(prompts)
    assert wire.plan_to_pb(largest).ByteSize() > GRPC_DEFAULT


class Chatty:
    """An executor whose every step draws `rows` tokens."""

    rows = 360_000

    def describe(self) -> ExecutorInfo:
        return INFO

    def open(self, epoch: bytes, resume: bool) -> int:
        return 1

    def step(self, plan: StepPlan) -> StepResult:
        return StepResult(plan.step, tuple(SampledToken(2**62 + row, row) for row in range(self.rows)))

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        yield ResidentPage(INFO.epoch, 0)


async def test_F37_result_of_any_size_reaches_the_scheduler() -> None:
    executor = Chatty()
    assert wire.result_to_pb(executor.step(StepPlan(1, 1))).ByteSize() > GRPC_DEFAULT
    with Served(executor) as served:
        client = ExecutorClient(served.target)
        async with await client.open(INFO.epoch, resume=False, timeout_s=30) as session:
            await session.send(StepPlan(1, 1))
            result = await session.receive()
        await client.close()
    assert len(result.sampled) == Chatty.rows
    assert result.sampled[-1] == SampledToken(2**62 + Chatty.rows - 1, Chatty.rows - 1)
