"""Every kind of answer x everything that can happen to it: what is told is what it is alone, on a cold cache."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from citybus import Completion, Delta, FinishReason
from citybus.messages import completions_of
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import Field, Ride, running_field, together
from tests.e2e.field_cases.parameters import told
from tests.e2e.losses import LOSSES
from tests.harness import START_S

LENGTH = 100
NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 20, "maxItems": 40}
DOUBLES = [2 * letter for letter in "abcdef"]

KINDS: dict[str, dict[str, Any]] = {
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 11},
    "penalties": {"temperature": 0.9, "seed": 5, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    "logprobs": {"temperature": 0.8, "seed": 2, "logprobs": 3},
    "stop text": {"temperature": 1.0, "seed": 3, "allowed_token_ids": [*b"abcdef"], "stop": DOUBLES, "min_tokens": 60},
    "split UTF-8": {"temperature": 1.0, "seed": 4, "allowed_token_ids": [*"é".encode()]},
    "n = 4": {"temperature": 1.1, "seed": 7, "n": 4},
    "beam": {"beam_width": 4, "n": 2},
    "schema": {"temperature": 1.0, "seed": 9, "json_schema": NUMBERS, "ignore_eos": False},
}
NUM_SEQUENCES = {name: max(options.get("n", 1), options.get("beam_width", 1)) for name, options in KINDS.items()}
EDGES = (15, 16, 17, 31, 32, 33)
REPEATING = (26, 12, 31, 33, 34, 29, 19, 11, 5, 8, 40)
"""Tokens of prompts whose answers repeat themselves, more or less."""

Told = list[tuple[object, ...]]


class Answer:
    """An answer under way, of any number of samples."""

    def __init__(self, field: Field, name: str, prompt: Sequence[int], max_tokens: int, salt: str) -> None:
        asked: dict[str, Any] = {"token_ids": prompt, "max_tokens": max_tokens, "ignore_eos": True, "cache_salt": salt}
        self._stream = field.client.generate(**(asked | KINDS[name]))
        self._request_id = self._stream.request_id()
        self._deltas: list[Delta] = []

    def read_some(self, num_tokens: int) -> None:
        while sum(len(delta.token_ids) for delta in self._deltas) < num_tokens:
            self._deltas.append(next(self._stream))

    def completions(self) -> list[Completion]:
        self._deltas += self._stream
        return completions_of(self._deltas, self._stream.finishes, self._request_id)

    def read(self) -> Told:
        return [told(completion) for completion in self.completions()]


def prompt_of(name: str, length: int = 9) -> list[int]:
    return [(7 * position + 11 * list(KINDS).index(name) + length) % 250 for position in range(length)]


def begun(field: Field, names: Sequence[str]) -> dict[str, Answer]:
    """All of `names` at once, accepted in this order, on a cold cache."""
    with field.paused():
        return {name: Answer(field, name, prompt_of(name), LENGTH, uuid.uuid4().hex) for name in names}


def read(answers: dict[str, Answer]) -> dict[str, Told]:
    return dict(zip(answers, together([answer.read for answer in answers.values()]), strict=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny", max_model_len=256)


@pytest.fixture(scope="module")
def tight(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """Seats for all fourteen sequences, blocks for half of them, and chunks of one block."""
    folder = tmp_path_factory.mktemp("tight")
    flags = ("--num-blocks", 48, "--max-sequences", 14, "--max-step-tokens", 16)
    journal = ("--journal", folder / "journal.db", "--drain-grace", 0, "--executor-timeout", 60)
    with running_field(model, folder, executor=flags, scheduler=journal) as field:
        yield field


@pytest.fixture(scope="module")
def roomy(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """Every prompt is computed in one chunk."""
    with running_field(model, tmp_path_factory.mktemp("roomy"), executor=("--num-blocks", 256)) as field:
        yield field


@pytest.fixture(scope="module")
def references(tight: Field) -> dict[str, Told]:
    """REF of every kind."""
    found = {}
    for name in KINDS:
        answer = Answer(tight, name, prompt_of(name), LENGTH, uuid.uuid4().hex).completions()
        assert len(answer) == KINDS[name].get("n", 1)
        assert all(completion.finish.usage.cached_tokens == 0 for completion in answer[:1])
        found[name] = [told(completion) for completion in answer]
    return found


def test_each_kind_is_what_it_is_called(tight: Field, references: dict[str, Told]) -> None:
    def parts(name: str) -> tuple[Any, ...]:
        return references[name][0]

    assert parts("stop text")[4] is FinishReason.STOP
    assert "é" in parts("split UTF-8")[1] and "\ufffd" in parts("split UTF-8")[1]
    assert len(parts("logprobs")[2]) == LENGTH
    assert len({answer[0] for answer in references["n = 4"]}) == 4
    assert references["beam"][0][0] != references["beam"][1][0]
    assert parts("schema")[1].startswith("[")
    assert len({str(answers) for answers in references.values()}) == len(KINDS)


def test_preempted(tight: Field, references: dict[str, Told]) -> None:
    """In another order every time, as the youngest are the victims, until every kind has been one."""
    preempted: set[str] = set()
    for turn in range(len(KINDS)):
        names = [*list(KINDS)[turn:], *list(KINDS)[:turn]]
        since = len(tight.bus.plans())
        assert read(begun(tight, names)) == references
        tight.bus.wait_idle()
        plans = tight.bus.plans()[since:]
        first = min(sequence for plan in plans for sequence, _ in plan["new"])
        owners = [name for name in names for _ in range(NUM_SEQUENCES[name])]
        preempted |= {owners[sequence - first] for plan in plans for sequence in plan["preempted"]}
        if preempted == set(KINDS):
            break
    assert preempted == set(KINDS)
    tight.check()


@pytest.mark.parametrize("length", EDGES)
def test_chunk_edges_and_prefix_hits(roomy: Field, tight: Field, length: int) -> None:
    for name in KINDS:
        prompt, salt = prompt_of(name, length), uuid.uuid4().hex
        reference = Answer(roomy, name, prompt, 64, salt).read()
        assert Answer(tight, name, prompt, 64, salt).read() == reference, "in chunks"
        again = Answer(tight, name, prompt, 64, salt).completions()
        assert [told(completion) for completion in again] == reference, "on a prefix hit"
        kept = length // 16 * 16 if name == "beam" else length  # of a block that beams generate into, nothing is kept
        assert again[0].finish.usage.cached_tokens == min(kept, length - 1)
    tight.check()


@pytest.mark.parametrize("lost", ["scheduler", "executor", "both"])
def test_killed(tight: Field, references: dict[str, Told], lost: str) -> None:
    answers = begun(tight, list(KINDS))
    answers["logprobs"].read_some(20)
    tight.bus.executor.send(signal.SIGSTOP)
    LOSSES[lost](tight.bus)
    assert read(answers) == references
    tight.check()


@pytest.fixture
def speculate(tight: Field) -> Iterator[Callable[[], None]]:
    """Has a scheduler that guesses take over; in the end, one that does not."""
    scheduler = tight.bus.scheduler
    plain = scheduler.flags

    def take_over(*more: str) -> None:
        scheduler.kill()
        scheduler.flags = (*plain, *more)
        scheduler.restart()
        tight.client.wait_ready(START_S)

    yield lambda: take_over("--speculative-tokens", "6")
    take_over()


def test_speculation(tight: Field, speculate: Callable[[], None]) -> None:
    """Greedy, seeded and stopped answers that repeat themselves at times: preempted, and with a draft on its way when a
    service dies."""

    def start(key: int, stop: Sequence[str] = ()) -> Ride:
        return tight.start([key] * 8, 150, temperature=(0.0, 0.0, 0.3)[key % 3], seed=1, stop=stop)

    def all_begun() -> list[Ride]:
        with tight.paused():
            return [start(key) for key in REPEATING] + [start(REPEATING[0], stop)]

    def all_read(rides: Sequence[Ride]) -> Told:
        return [told(completion) for completion in together([ride.read for ride in rides])]

    stop = [start(REPEATING[0]).read().text[60:63]]
    expected = [told(start(key).read()) for key in REPEATING] + [told(start(REPEATING[0], stop).read())]
    assert expected[-1][4] is FinishReason.STOP
    speculate()
    since = len(tight.bus.plans())
    assert all_read(all_begun()) == expected
    drafted = tight.metric("spec_decode_num_draft_tokens_total")
    assert 200 < tight.metric("spec_decode_num_accepted_tokens_total") < drafted
    assert any(plan["preempted"] for plan in tight.bus.plans()[since:])
    for lost in ("scheduler", "executor"):
        rides = all_begun()
        rides[0].read_some(20)
        tight.bus.executor.send(signal.SIGSTOP)
        LOSSES[lost](tight.bus)
        assert all_read(rides) == expected
    tight.check()
