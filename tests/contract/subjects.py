"""The executors under test, and how to make a step of theirs fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

import pytest

from common.step_executor import StepExecutor
from executor_svc.engine import Engine
from tests.contract.session import NUM_BLOCKS
from tests.fakes import INFO, FakeExecutor


@dataclass(frozen=True, slots=True)
class Subject:
    """An executor under test, and how to make its next step fail."""

    executor: StepExecutor
    fail_next: Callable[[], None]


def fake_subject() -> Subject:
    executor = FakeExecutor(replace(INFO, num_blocks=NUM_BLOCKS, max_sequences=16, max_step_tokens=128))

    def fail_next() -> None:
        reasons = iter(["it broke"])
        executor.fail = lambda plan: next(reasons, None)

    return Subject(executor, fail_next)


def engine_subject(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Subject:
    def fail_next() -> None:
        def broken(*arguments: object) -> NoReturn:
            monkeypatch.undo()
            raise RuntimeError("it broke")

        monkeypatch.setattr("executor_svc.model_runner.build_batch", broken)

    return Subject(engine, fail_next)
