"""Hostile plans to the decoder and a real engine: they are executed or refused whole, and a good plan goes on after."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from citybus.executor.v1 import executor_pb2 as pb
from common import wire
from common.metrics import ExecutorMetrics
from common.step import BlockCopy, Draft, InvalidPlan, SealedBlock, StaleTerm, StepPlan
from executor_svc.config import Config
from executor_svc.engine import Engine
from executor_svc.startup import load_engine
from tests.checkpoints import write_tiny
from tests.contract.session import OTHER, PROMPT, SAMPLED, Session, grow, new
from tests.fuzz.hostile import Hostile, hostile_bytes, parsed

ROUNDS, PER_ROUND = 40, 25
BLOCKS = 24


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    model = write_tiny(tmp_path_factory.mktemp("model") / "tiny", num_layers=1, max_model_len=128)
    options: dict[str, Any] = {"num_threads": 1, "num_blocks": BLOCKS, "max_sequences": 8, "max_step_tokens": 128}
    return load_engine(Config(model=Path(model), **options), ExecutorMetrics(CollectorRegistry()))


def begin(engine: Engine) -> tuple[Session, StepPlan]:
    """A session with three residents, and a good plan that does a bit of everything with them."""
    session = Session(engine)
    residents = (new(1, PROMPT[:20], [0, 1]), new(2, OTHER[:40], [2], count=16), new(3, PROMPT[:16], [5]))
    session.step(new_sequences=residents)
    plan = session.plan(
        finished_ids=(3,),
        copies=(BlockCopy(0, 7),),
        new_sequences=(new(4, OTHER[:20], [7, 8], computed=16), new(5, PROMPT[:9], [9], sampling=SAMPLED)),
        scheduled=(grow(1), grow(2, 3, count=16)),
        sealed=(SealedBlock(2, b"h" * 16),),
        drafts=(Draft(1, (3, 4)),),
    )
    return session, plan


def execute(engine: Engine, message: pb.StepPlan) -> dict[int, int]:
    """As the service does; sequence -> token. Raises `InvalidPlan` or `StaleTerm`."""
    result = engine.step(wire.plan_from_pb(message))
    assert result.error is None, message
    return {token.sequence_id: token.token_id for token in result.sampled}


def attack(engine: Engine, chance: random.Random, expected: dict[int, int], seen: Counter[str]) -> None:
    session, plan = begin(engine)
    good = wire.plan_to_pb(plan)
    hostile = Hostile(chance, fullness=chance.choice((0.2, 0.6)))
    message = parsed(pb.StepPlan, hostile_bytes([good], hostile))
    if message is None:
        seen["no message"] += 1
        return
    assert isinstance(message, pb.StepPlan)
    if chance.random() < 0.7:  # else nearly all would fall for their number
        message.term, message.step = good.term, good.step
    try:
        tokens = execute(engine, message)
    except (InvalidPlan, StaleTerm) as refusal:
        assert len(str(refusal)) < 300
        seen["refused"] += 1
        assert execute(engine, good) == expected, "nothing of the refused plan was applied"
        return
    seen["executed"] += 1
    assert all(0 <= token < engine.describe().vocab_size for token in tokens.values())
    assert session.term == good.term


def test_hostile_plans_are_executed_or_refused_whole(engine: Engine) -> None:
    expected = execute(engine, wire.plan_to_pb(begin(engine)[1]))
    assert expected.keys() == {1, 4, 5}
    seen: Counter[str] = Counter()

    @settings(max_examples=ROUNDS, database=None, derandomize=True)
    @given(st.integers(0, 2**32 - 1))
    def fire(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(PER_ROUND):
            attack(engine, chance, expected, seen)
        assert execute(engine, wire.plan_to_pb(begin(engine)[1])) == expected

    fire()
    assert min(seen[end] for end in ("no message", "refused", "executed")) > ROUNDS * PER_ROUND // 50, seen


ANSWERS: dict[type[Message], tuple[Message, Any]] = {
    pb.StepResult: (pb.StepResult(step=1, ids=[1, 2], token_ids=[3, 4], error="x"), wire.result_from_pb),
    pb.ReconcileResponse: (
        pb.ReconcileResponse(
            epoch=b"e" * 16,
            sequences=[pb.ResidentSequence(id=1, token_ids=[1], block_ids=[2])],
            cached_blocks=[1, 2],
            cached_hashes=b"h" * 32,
        ),
        wire.page_from_pb,
    ),
    pb.DescribeResponse: (pb.DescribeResponse(epoch=b"e" * 16, model="m", num_blocks=4), wire.info_from_pb),
    pb.StepPlan: (pb.StepPlan(term=1, step=1, ids=[1, 2], num_tokens=[1, 2], grown_rows=[1]), wire.plan_from_pb),
}


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: str(kind.DESCRIPTOR.name))
@settings(max_examples=40, database=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1))
def test_hostile_messages_of_the_step_protocol_are_decoded_or_refused(kind: type[Message], seed: int) -> None:
    good, decode = ANSWERS[kind]
    hostile = Hostile(random.Random(seed), fullness=0.5)
    for _ in range(25):
        message = parsed(kind, hostile_bytes([good], hostile))
        if message is not None:
            try:
                decode(message)
            except InvalidPlan as refusal:
                assert len(str(refusal)) < 300
