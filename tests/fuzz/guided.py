"""Coverage-guided fuzzing of what reads bytes: `python -m tests.fuzz.guided [libFuzzer's options]`, or `make fuzz`.

Not part of the suite. It needs atheris, which has wheels for some platforms only: pip install atheris. The first byte
of an input chooses the target; whatever but a refusal comes out of one is a finding, and its input is put into a file.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(
    include=["common", "executor_svc.plan_rules", "executor_svc.resident", "scheduler_svc"]
):
    from common import wire
    from common.errors import InvalidRequest, NotFound
    from common.step import InvalidPlan, StepPlan
    from executor_svc.resident import ResidentTable
    from scheduler_svc.validation import validate_generate, validate_prompt

from google.protobuf.message import DecodeError

from citybus.executor.v1 import executor_pb2
from citybus.v1 import generation_pb2
from tests.contract.session import OTHER, PROMPT, new
from tests.fakes import INFO

REFUSALS = (DecodeError, InvalidRequest, NotFound, InvalidPlan)


def plan(raw: bytes) -> None:
    table = ResidentTable(INFO)
    residents = (new(1, PROMPT[:20], [0, 1]), new(2, OTHER[:40], [2], count=16))
    table.apply(StepPlan(1, 1, new_sequences=residents))
    table.apply(wire.plan_from_pb(executor_pb2.StepPlan.FromString(raw)))


def result(raw: bytes) -> None:
    wire.result_from_pb(executor_pb2.StepResult.FromString(raw))


def page(raw: bytes) -> None:
    wire.page_from_pb(executor_pb2.ReconcileResponse.FromString(raw))


def generate(raw: bytes) -> None:
    validate_generate(generation_pb2.GenerateRequest.FromString(raw), INFO)


def count_tokens(raw: bytes) -> None:
    validate_prompt(generation_pb2.CountTokensRequest.FromString(raw))


TARGETS: tuple[Callable[[bytes], None], ...] = (plan, generate, count_tokens, result, page)


def one_input(raw: bytes) -> None:
    if raw:
        with contextlib.suppress(*REFUSALS):
            TARGETS[raw[0] % len(TARGETS)](raw[1:])


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
