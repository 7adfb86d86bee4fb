"""Sessions, failures and what stays resident."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry

from common.metrics import ExecutorMetrics
from common.step import InvalidPlan, NewSequence, Sampling, ScheduledSequence, SealedBlock, StaleTerm, StepPlan
from executor_svc.config import Config
from executor_svc.engine import Engine
from executor_svc.startup import load_engine
from tests.executor.conftest import MakeEngine
from tests.executor.driver import GREEDY, Session, generate

PROMPT = tuple(range(40, 60))


def new(sequence_id: int, *blocks: int, tokens: tuple[int, ...] = PROMPT, count: int | None = None) -> NewSequence:
    return NewSequence(sequence_id, tokens, len(tokens), 0, count or len(tokens), blocks, GREEDY)


def resident_ids(engine: Engine) -> list[int]:
    return [sequence.sequence_id for page in engine.resident(256) for sequence in page.sequences]


def test_describe_says_what_it_was_made_with(make_engine: MakeEngine) -> None:
    info = make_engine(num_blocks=7, block_size=8, max_model_len=100, max_sequences=3, max_step_tokens=50).describe()
    assert (info.model, info.vocab_size, info.max_model_len, info.block_size) == ("tiny", 272, 100, 8)
    assert (info.num_blocks, info.max_sequences, info.max_step_tokens, len(info.epoch)) == (7, 3, 50, 16)
    assert len(info.tokenizer_digest) == 32


def test_every_engine_has_an_epoch_of_its_own(make_engine: MakeEngine) -> None:
    first, second = make_engine(), make_engine()
    assert first.describe().epoch != second.describe().epoch
    with pytest.raises(StaleTerm):
        second.open(first.describe().epoch, False)


def test_terms_rise_and_fence(engine: Engine) -> None:
    older = Session(engine)
    newer = Session(engine)
    assert newer.term > older.term
    with pytest.raises(StaleTerm):
        engine.step(older.plan())
    newer.step()
    with pytest.raises(InvalidPlan):
        engine.step(StepPlan(newer.term + 1, 2))


def test_steps_rise_by_one_from_any_first(engine: Engine) -> None:
    session = Session(engine, step=41)
    assert session.step().step == 42
    for wrong in (41, 42, 44):
        with pytest.raises(InvalidPlan):
            engine.step(StepPlan(session.term, wrong))
    assert session.step().step == 43


def test_resuming_keeps_everything_and_opening_anew_nothing(engine: Engine) -> None:
    session = Session(engine)
    seal = SealedBlock(3, bytes(range(16)))
    (token,) = session.drawn(new_sequences=(new(1, 3, 5),), sealed=(seal,))
    session = Session(engine, resume=True, step=session.last_step)
    (page,) = engine.resident(10)
    assert page.epoch == session.info.epoch and page.last_step == 1 and page.cached == (seal,)
    (held,) = page.sequences
    assert held.token_ids == (*PROMPT, token) and held.num_computed_tokens == 20 and held.block_ids == (3, 5)
    again = session.drawn(scheduled=(ScheduledSequence(1, 1),))
    assert [[token, *again]] == generate(engine, [PROMPT], 2), "which opens anew"
    Session(engine)
    (page,) = engine.resident(10)
    assert page.sequences == () and page.cached == () and page.last_step == 0


def test_dropping_what_the_pool_holds_is_counted(tiny: Path) -> None:
    registry = CollectorRegistry()
    engine = load_engine(Config(model=tiny, num_threads=1, num_blocks=64), ExecutorMetrics(registry))

    def clears() -> float | None:
        return registry.get_sample_value("citybus:executor_pool_clears_total")

    session = Session(engine)
    assert clears() == 0, "it was empty"
    session.step(new_sequences=(new(1, 3, 5),), sealed=(SealedBlock(3, bytes(16)),))
    session = Session(engine, resume=True, step=session.last_step)
    session.step(finished_ids=(1,))
    assert clears() == 0
    Session(engine)
    assert clears() == 1, "a name was known"


def test_a_chunk_draws_nothing_before_the_last(engine: Engine) -> None:
    session = Session(engine)
    assert session.drawn(new_sequences=(new(1, 0, count=16),)) == []
    assert len(session.drawn(scheduled=(ScheduledSequence(1, 4, (1,)),))) == 1


def test_results_are_in_the_order_of_the_plan(engine: Engine) -> None:
    session = Session(engine)
    session.step(new_sequences=(new(5, 0, 1), new(2, 2, 3)))
    result = session.step(
        new_sequences=(new(9, 4, 5), new(1, 6, 7)), scheduled=(ScheduledSequence(5, 1), ScheduledSequence(2, 1))
    )
    assert [token.sequence_id for token in result.sampled] == [9, 1, 5, 2]
    assert result.execute_ns > 0 and result.idle_ns > 0


def test_a_result_says_how_long_there_was_no_plan(engine: Engine) -> None:
    session = Session(engine)
    session.step(new_sequences=(new(1, 0, 1),))
    time.sleep(0.05)
    result = session.step(scheduled=(ScheduledSequence(1, 1),))
    assert result.idle_ns >= 50_000_000


def test_a_failing_forward_drops_the_rows_of_its_step_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(engine)
    (token,) = session.drawn(new_sequences=(new(1, 0, 1),))

    def fail(*arguments: Any) -> torch.Tensor:
        raise RuntimeError(f"prompt {PROMPT}")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner.model, "forward", fail)
        result = engine.step(session.plan(new_sequences=(new(2, 2, 3),)))
    assert result.error == "RuntimeError" and result.sampled == ()
    assert resident_ids(engine) == [1]
    after = session.drawn(new_sequences=(new(2, 2, 3),), scheduled=(ScheduledSequence(1, 1),))
    assert after[0] == token and after == [token, generate(engine, [PROMPT], 2)[0][1]]


def test_nan_in_one_row_does_not_reach_another(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = generate(engine, [PROMPT], 6)[0]
    session = Session(engine)
    drawn = session.drawn(new_sequences=(new(1, 0, 1), new(2, 2, 3)))
    engine.runner.pool.pools[:, [2, 3]] = torch.nan
    for _ in range(4):
        drawn += session.drawn(scheduled=(ScheduledSequence(2, 1), ScheduledSequence(1, 1)))
    assert [drawn[0], *drawn[3::2]] == clean[:5]
    assert all(0 <= token < 272 for token in drawn)


def test_blocks_of_a_sequence_of_nan_are_harmless_to_their_next_owner(engine: Engine) -> None:
    clean = generate(engine, [PROMPT], 6)[0]
    session = Session(engine)
    engine.runner.pool.pools.fill_(torch.nan)
    drawn = session.drawn(new_sequences=(new(1, 0, 1),))
    for _ in range(5):
        drawn += session.drawn(scheduled=(ScheduledSequence(1, 1),))
    assert drawn == clean


def test_a_plan_of_nothing_is_a_result_of_nothing(engine: Engine) -> None:
    session = Session(engine)
    session.step(new_sequences=(new(1, 0, 1),))
    assert session.step(finished_ids=(1,)).sampled == ()
    assert resident_ids(engine) == []


def test_pages_hold_what_was_asked_for(engine: Engine) -> None:
    session = Session(engine)
    session.step(
        new_sequences=tuple(new(key, key, tokens=(1, 2)) for key in range(5)),
        sealed=tuple(SealedBlock(block, bytes(16)) for block in range(7)),
    )
    pages = list(engine.resident(2))
    assert [len(page.sequences) for page in pages] == [2, 2, 1, 0]
    assert [len(page.cached) for page in pages] == [2, 2, 2, 1]


def test_the_seed_may_use_all_64_bits(engine: Engine) -> None:
    outputs = [
        generate(engine, [PROMPT], 12, samplings=[Sampling(2.0, seed=seed)])[0] for seed in (0, 2**63, 2**64 - 1)
    ]
    assert len({tuple(output) for output in outputs}) == 3
