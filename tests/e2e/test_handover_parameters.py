"""Penalties, bans, minimum lengths and log-probabilities survive the loss of either service, or of both.

The executor stands still while something is lost, so that nobody's answer ends before.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from citybus import Completion
from citybus.messages import completion_of, delta_of, finish_of
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import Field, num_under_way, running_executor, scheduler_field, together
from tests.e2e.field_cases.parameters import PARAMETERS, told
from tests.e2e.losses import LOSSES
from tests.harness import wait_until

LENGTH = 300
PROMPTS = [[seat, *range(40, 40 + 9 * seat)] for seat in range(6)]
TOLD = list(PARAMETERS).index("logprobs")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal") / "journal.db"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, journal: Path) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("parameters")
    model = write_tiny(folder / "tiny", max_model_len=512)
    flags = ("--num-blocks", 256, "--max-sequences", 6, "--max-step-tokens", 48)
    schedulers = ("--journal", journal, "--drain-grace", 0, "--executor-timeout", 60)
    with (
        running_executor(model, folder / "executor.log", *flags) as executor,
        scheduler_field(model, folder / "bus", executor, *schedulers) as field,
    ):
        yield field


@pytest.fixture(scope="module")
def references(session: Field) -> list[tuple[object, ...]]:
    return [
        told(session.ask(prompt, LENGTH, cache_salt=uuid.uuid4().hex, **options))
        for prompt, options in zip(PROMPTS, PARAMETERS.values(), strict=True)
    ]


def whole_again(field: Field, request_id: str) -> Completion:
    """An answer read from its beginning, by a reader that has heard nothing of it."""
    with grpc.insecure_channel(field.bus.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        messages = list(stub.Attach(pb.AttachRequest(request_id=request_id), timeout=60))
    end = finish_of(messages[-1])
    assert end is not None
    return completion_of([part for part in map(delta_of, messages) if part is not None], end, request_id)


@pytest.mark.parametrize(
    ("lost", "num_heard"), [("scheduler", 1), ("scheduler", 100), ("executor", 100), ("both", 100)]
)
def test_what_is_said_and_told_is_the_same(
    session: Field, references: list[tuple[object, ...]], lost: str, num_heard: int
) -> None:
    with session.paused():
        rides = [
            session.start(prompt, LENGTH, cache_salt=uuid.uuid4().hex, **options)
            for prompt, options in zip(PROMPTS, PARAMETERS.values(), strict=True)
        ]
    rides[TOLD].read_some(num_heard)
    session.bus.executor.send(signal.SIGSTOP)
    LOSSES[lost](session.bus)
    assert [told(answer) for answer in together([ride.read for ride in rides])] == references
    request_id = rides[TOLD].request_id
    assert request_id is not None
    assert told(whole_again(session, request_id)) == references[TOLD]
    session.check()


def test_an_answer_that_ended_before_this_scheduler_began_has_no_log_probabilities(
    session: Field, journal: Path, references: list[tuple[object, ...]]
) -> None:
    options = PARAMETERS["logprobs"] | {"cache_salt": uuid.uuid4().hex}
    ride = session.start(PROMPTS[TOLD], LENGTH, **options)
    answer = ride.read()
    assert told(answer) == references[TOLD]
    wait_until(lambda: num_under_way(journal) == 0, "the journal knows that it has ended", 10)
    session.bus.scheduler.kill()
    session.bus.scheduler.restart()
    session.client.wait_ready()
    again = whole_again(session, str(ride.request_id))
    assert (again.token_ids, again.text) == (answer.token_ids, answer.text)
    assert {score.logprob for score in again.logprobs} == {None}
    assert len(again.logprobs) == LENGTH
    assert again.prompt is not None and answer.prompt is not None
    assert (again.prompt.token_ids, again.prompt.text) == (answer.prompt.token_ids, answer.prompt.text)
    session.check()
