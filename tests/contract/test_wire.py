"""The wire carries every value of the step vocabulary unchanged, in few bytes, and refuses columns that disagree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given

from citybus.executor.v1 import executor_pb2 as pb
from common import wire
from common.resident import ResidentPage, ResidentSequence
from common.step import (
    BlockCopy,
    Draft,
    ExecutorInfo,
    InvalidPlan,
    NewSequence,
    Sampling,
    ScheduledSequence,
    SealedBlock,
    StepPlan,
    StepResult,
)
from scheduler_svc.executor_client import ExecutorClient
from tests.contract import strategies
from tests.contract.wire_executor import Served, WireExecutor
from tests.fakes import INFO


@given(strategies.plans)
def test_plan_round_trip(plan: StepPlan) -> None:
    data = wire.plan_to_pb(plan).SerializeToString()
    assert wire.plan_from_pb(pb.StepPlan.FromString(data)) == plan


@given(strategies.results)
def test_result_round_trip(result: StepResult) -> None:
    data = wire.result_to_pb(result).SerializeToString()
    assert wire.result_from_pb(pb.StepResult.FromString(data)) == result


@given(strategies.infos)
def test_info_round_trip(info: ExecutorInfo) -> None:
    data = wire.info_to_pb(info).SerializeToString()
    assert wire.info_from_pb(pb.DescribeResponse.FromString(data)) == info


@given(strategies.pages)
def test_page_round_trip(page: ResidentPage) -> None:
    data = wire.page_to_pb(page).SerializeToString()
    assert wire.page_from_pb(pb.ReconcileResponse.FromString(data)) == page


def test_the_smallest_messages_are_not_lost() -> None:
    plan = StepPlan(term=0, step=0, new_sequences=(NewSequence(0, (0,), 0, 0, 0, (0,), Sampling(0, 0, 0, 0, 0)),))
    assert wire.plan_from_pb(pb.StepPlan.FromString(wire.plan_to_pb(plan).SerializeToString())) == plan
    assert wire.result_from_pb(pb.StepResult()) == StepResult(0)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33])
def test_columns_of_any_length_keep_their_rows(count: int) -> None:
    rows = tuple(
        ScheduledSequence(100 + index, 1 + index % 3, tuple(range(index, index + index % 4))) for index in range(count)
    )
    copies = tuple(BlockCopy(index, 1000 + index) for index in range(count))
    sealed = tuple(SealedBlock(index, index.to_bytes(16, "big")) for index in range(count))
    finished, preempted = tuple(range(count)), tuple(range(100, 100 + count))
    plan = StepPlan(1, 2, (), rows, finished, preempted, copies, sealed)
    assert wire.plan_from_pb(wire.plan_to_pb(plan)) == plan


def decodes(count: int, first_id: int) -> StepPlan:
    """A step of decodes at block size 16: one row in 16 gets a block, and one in 16 has filled one."""
    rows = tuple(
        ScheduledSequence(first_id + 7 * index, 1, (30_000 + index,) if index % 16 == 0 else ())
        for index in range(count)
    )
    sealed = tuple(SealedBlock(20_000 + index, bytes(range(16))) for index in range(count // 16))
    return StepPlan(term=3, step=1_000_000, scheduled=rows, sealed=sealed)


def test_a_plan_of_1024_decodes_is_small() -> None:
    plan = decodes(1024, first_id=10_000_000)
    assert wire.plan_to_pb(plan).ByteSize() <= 6 * 1024
    assert wire.plan_to_pb(decodes(1024, first_id=2**63)).ByteSize() <= 16 * 1024


def test_the_size_of_a_plan_grows_with_what_changed_and_not_with_the_tables() -> None:
    """A decode costs its id; the length of what it has behind it is not sent."""
    one, two = (wire.plan_to_pb(decodes(count, first_id=10_000_000)).ByteSize() for count in (512, 1024))
    seal, grown = 16 + 3, 2 + 3
    assert two - one <= 512 * 4 + 32 * (seal + grown) + 16


def test_a_draft_costs_its_tokens_and_its_id_and_no_draft_costs_nothing() -> None:
    plan = decodes(1024, first_id=10_000_000)
    drafted = replace(plan, drafts=tuple(Draft(row.sequence_id, (40_000,) * 8) for row in plan.scheduled[:100]))
    assert wire.plan_to_pb(drafted).ByteSize() - wire.plan_to_pb(plan).ByteSize() <= 100 * (8 * 3 + 4 + 6)
    assert wire.plan_to_pb(replace(drafted, drafts=())) == wire.plan_to_pb(plan)


@pytest.mark.parametrize(
    "message",
    [
        pb.StepPlan(ids=[1, 2], num_tokens=[1]),
        pb.StepPlan(ids=[1], num_tokens=[1, 1]),
        pb.StepPlan(ids=[1], grown_rows=[1], grown_blocks=[4]),
        pb.StepPlan(ids=[1], grown_rows=[0], grown_blocks=[4, 5]),
        pb.StepPlan(ids=[1], grown_rows=[0], num_grown_blocks=[2], grown_blocks=[4]),
        pb.StepPlan(ids=[1], grown_rows=[0], num_grown_blocks=[1, 1], grown_blocks=[4, 5]),
        pb.StepPlan(ids=[1, 2], grown_rows=[0, 0], grown_blocks=[4, 5]),
        pb.StepPlan(copy_sources=[1]),
        pb.StepPlan(copy_destinations=[1]),
        pb.StepPlan(sealed_blocks=[1]),
        pb.StepPlan(sealed_blocks=[1], sealed_hashes=bytes(15)),
        pb.StepPlan(sealed_hashes=bytes(16)),
    ],
)
def test_columns_that_disagree_are_refused(message: pb.StepPlan) -> None:
    with pytest.raises(InvalidPlan):
        wire.plan_from_pb(message)


def test_a_page_whose_columns_disagree_is_refused() -> None:
    with pytest.raises(InvalidPlan):
        wire.page_from_pb(pb.ReconcileResponse(cached_blocks=[1, 2], cached_hashes=bytes(16)))


class Recorder:
    """Executes nothing: keeps the plans it is given, and tells of one large resident sequence a plan."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def describe(self) -> ExecutorInfo:
        return INFO

    def open(self, epoch: bytes, resume: bool) -> int:
        return 1

    def step(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        return StepResult(plan.step)

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        rows = self.plans[0].new_sequences
        held = [ResidentSequence(r.sequence_id, r.token_ids, 1, 0, r.block_ids, r.sampling, 0) for r in rows]
        for start in range(0, len(held), page_size):
            yield ResidentPage(INFO.epoch, 1, tuple(held[start : start + page_size]))


def huge_plan(step: int) -> StepPlan:
    """256 new sequences with tables of 8,000 blocks, and a prompt of 64k tokens: 10 MB."""
    rows = [
        NewSequence(key, (7,) * 8_000, 8_000, 0, 1, tuple(range(key * 8_000, (key + 1) * 8_000)), Sampling())
        for key in range(256)
    ]
    rows.append(NewSequence(999, tuple(range(65_536)), 65_536, 0, 1, tuple(range(4_096)), Sampling()))
    return StepPlan(1, step, new_sequences=tuple(rows))


async def test_F37_a_legal_plan_never_fails_by_its_size() -> None:
    plans = [huge_plan(1), StepPlan(1, 2, finished_ids=(999,))]
    assert wire.plan_to_pb(plans[0]).ByteSize() > 8_000_000
    executor = Recorder()
    with Served(executor) as served:
        client = ExecutorClient(served.target)
        session = await client.open(INFO.epoch, resume=False, timeout_s=30)
        async with session:
            for plan in plans:
                await session.send(plan)
            results = [await session.receive() for _ in plans]
        await client.close()
        over_the_wire = WireExecutor(served.target)
        pages = list(over_the_wire.resident(256))
        over_the_wire.close()
    assert [result.step for result in results] == [1, 2]
    assert executor.plans == plans
    assert pages == list(executor.resident(256))


@pytest.mark.parametrize("message", [pb.StepResult(ids=[1]), pb.StepResult(ids=[1], token_ids=[7, 8])])
def test_a_result_whose_columns_disagree_is_refused(message: pb.StepResult) -> None:
    with pytest.raises(InvalidPlan):
        wire.result_from_pb(message)


def test_a_grammar_without_a_source_is_refused() -> None:
    row = pb.NewSequence(id=1, sampling=pb.Sampling(grammar=pb.Grammar(end_token_ids=[1])))
    with pytest.raises(InvalidPlan, match="a grammar has no source"):
        wire.plan_from_pb(pb.StepPlan(new_sequences=[row]))
