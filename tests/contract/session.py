"""A scheduler in few words: numbers the plans and keeps the block tables straight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.resident import ResidentSequence
from common.step import NewSequence, Sampling, ScheduledSequence, StepPlan, StepResult
from common.step_executor import StepExecutor

GREEDY = Sampling(temperature=0.0)
NUM_BLOCKS = 40
PROMPT = [7 * position % 101 for position in range(64)]
OTHER = [5 * position % 97 + 1 for position in range(64)]
SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=50, min_p=0.01, seed=2**63 + 5)


def new(
    sequence_id: int,
    tokens: Sequence[int],
    blocks: Iterable[int],
    *,
    computed: int = 0,
    count: int | None = None,
    prompt: int | None = None,
    sampling: Sampling = GREEDY,
) -> NewSequence:
    """A new sequence that computes `count` tokens (default: all that are not `computed`)."""
    return NewSequence(
        sequence_id,
        tuple(tokens),
        len(tokens) if prompt is None else prompt,
        computed,
        len(tokens) - computed if count is None else count,
        tuple(blocks),
        sampling,
    )


def grow(sequence_id: int, *blocks: int, count: int = 1) -> ScheduledSequence:
    """A known sequence that computes `count` tokens and gets `blocks`."""
    return ScheduledSequence(sequence_id, count, blocks)


@dataclass(slots=True)
class Session:
    """An open session with an executor."""

    executor: StepExecutor
    resume: bool = False
    term: int = field(init=False)
    number: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.reopen(self.resume)

    def reopen(self, resume: bool = True) -> None:
        """Open it again, as after a plan that was refused."""
        self.term = self.executor.open(self.executor.describe().epoch, resume)

    def plan(self, **parts: Any) -> StepPlan:
        """The next plan."""
        self.number += 1
        return StepPlan(**({"term": self.term, "step": self.number} | parts))

    def step(self, **parts: Any) -> StepResult:
        """Execute the next plan."""
        return self.executor.step(self.plan(**parts))

    def tokens(self, **parts: Any) -> dict[int, int]:
        """Execute the next plan; sequence id -> the token it drew."""
        result = self.step(**parts)
        assert result.error is None
        return {token.sequence_id: token.token_id for token in result.sampled}

    def decode(self, sequence_id: int, length: int, count: int, free: Iterable[int]) -> list[int]:
        """The next `count` tokens of a resident sequence with `length` tokens, alone; blocks come from `free`."""
        size, blocks = self.executor.describe().block_size, iter(free)
        drawn = []
        for position in range(length - 1, length - 1 + count):
            added = (next(blocks),) if position % size == 0 else ()
            drawn.append(self.tokens(scheduled=(ScheduledSequence(sequence_id, 1, added),))[sequence_id])
        return drawn


def reference(executor: StepExecutor, prompt: Sequence[int], count: int, sampling: Sampling = GREEDY) -> list[int]:
    """REF by the executor itself: alone, on a cold pool, the prompt in one piece."""
    info = executor.describe()
    session = Session(executor)
    blocks = range(-(-len(prompt) // info.block_size))
    first = session.tokens(new_sequences=(new(1, prompt, blocks, sampling=sampling),))[1]
    rest = session.decode(1, len(prompt) + 1, count - 1, range(len(blocks), info.num_blocks))
    session.step(finished_ids=(1,))
    return [first, *rest]


def residents(executor: StepExecutor) -> dict[int, ResidentSequence]:
    return {held.sequence_id: held for page in executor.resident(256) for held in page.sequences}


def cached(executor: StepExecutor) -> dict[int, bytes]:
    return {seal.block_id: seal.content_hash for page in executor.resident(256) for seal in page.cached}
