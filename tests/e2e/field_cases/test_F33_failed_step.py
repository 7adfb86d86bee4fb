"""A step that raises: only its own requests fail.

The executor is a real engine behind a real server, in the process of the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from prometheus_client import CollectorRegistry

from citybus import CitybusError
from common.metrics import ExecutorMetrics
from common.resident import ResidentPage
from common.step import ExecutorInfo, StepPlan, StepResult
from executor_svc.config import Config
from executor_svc.engine import Engine
from executor_svc.startup import load_engine
from tests.checkpoints import VOCAB_SIZE
from tests.contract.wire_executor import Served
from tests.e2e.field_cases.field import InProcess, Ride, is_serving, scheduler_field

PROMPTS = [[seat, *range(40, 60)] for seat in range(10, 17)]


class Faulty:
    """An engine whose forward pass raises for the token `poison`; it remembers whose steps have failed."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.poison = -1
        self.failed: list[set[int]] = []
        self._forward = engine.runner.model.forward
        patch.setattr(engine.runner.model, "forward", self._raise_for_poison)

    def describe(self) -> ExecutorInfo:
        return self.engine.describe()

    def open(self, epoch: bytes, resume: bool) -> int:
        return self.engine.open(epoch, resume)

    def step(self, plan: StepPlan) -> StepResult:
        result = self.engine.step(plan)
        if result.error is not None:
            new, known = plan.new_sequences, plan.scheduled
            self.failed.append({row.sequence_id for row in new} | {row.sequence_id for row in known})
        return result

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        return self.engine.resident(page_size)

    def _raise_for_poison(self, batch: Any, pool: Any) -> torch.Tensor:
        if self.poison in batch.token_ids:
            raise RuntimeError(f"tokens {batch.token_ids.tolist()}")
        return self._forward(batch, pool)


def end_of(ride: Ride) -> tuple[int, ...] | CitybusError:
    try:
        return ride.read().token_ids
    except CitybusError as error:
        return error


def test_F33_only_the_requests_of_a_failed_step_fail(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Config(model=tiny, num_threads=1, num_blocks=64, max_sequences=3)
    faulty = Faulty(load_engine(settings, ExecutorMetrics(CollectorRegistry())), monkeypatch)
    with Served(faulty) as served, scheduler_field(tiny, tmp_path, InProcess(served.target)) as field:
        references = [field.reference(prompt, 60) for prompt in PROMPTS]
        faulty.poison = max(set(range(VOCAB_SIZE)) - {token for tokens in references for token in tokens})
        first = field.bus.status().totals.accepted + 1
        prompts = [*PROMPTS[:3], [faulty.poison, 1, 2], *PROMPTS[3:]]
        expected = [*references[:3], None, *references[3:]]
        ends = [end_of(ride) for ride in [field.start(prompt, 60) for prompt in prompts]]
        (failed,) = faulty.failed
        assert first + 3 in failed
        for sequence, (end, tokens) in enumerate(zip(ends, expected, strict=True), first):
            if sequence in failed:
                assert isinstance(end, CitybusError) and end.code is grpc.StatusCode.INTERNAL
                assert str(faulty.poison) not in str(end)
            else:
                assert end == tokens
        assert len(failed) < len(prompts)
        assert field.metric("request_failures_total", code="INTERNAL") == len(failed)
        assert is_serving(field.bus.address)
        field.check()
