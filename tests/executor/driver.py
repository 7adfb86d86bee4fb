"""A small scheduler: drives an engine over prompts in chunks of chosen sizes, with blocks in shuffled order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from common.step import (
    NewSequence,
    SampledToken,
    Sampling,
    ScheduledSequence,
    StepPlan,
    StepResult,
)
from common.step_executor import StepExecutor

GREEDY = Sampling(temperature=0.0)


def blocks_for(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


class Session:
    """Numbers the plans of one session."""

    def __init__(self, executor: StepExecutor, *, resume: bool = False, step: int = 0) -> None:
        self.executor = executor
        self.info = executor.describe()
        self.term = executor.open(self.info.epoch, resume)
        self.last_step = step

    def plan(self, **parts: Any) -> StepPlan:
        self.last_step += 1
        return StepPlan(self.term, self.last_step, **parts)

    def step(self, **parts: Any) -> StepResult:
        result = self.executor.step(self.plan(**parts))
        assert result.error is None, result.error
        return result

    def drawn(self, **parts: Any) -> list[int]:
        return [token.token_id for token in self.step(**parts).sampled]


class Rider:
    """One prompt on its way."""

    def __init__(self, sequence_id: int, prompt: Sequence[int], sampling: Sampling, count: int) -> None:
        self.sequence_id = sequence_id
        self.prompt = tuple(prompt)
        self.sampling = sampling
        self.count = count
        self.output: list[int] = []
        self.computed = 0
        self.blocks: list[int] = []
        self.resident = False

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def done(self) -> bool:
        return len(self.output) >= self.count

    def row(self, chunk: int, free: Iterator[int], block_size: int) -> NewSequence | ScheduledSequence:
        num_tokens = min(chunk, self.known - self.computed)
        missing = blocks_for(self.computed + num_tokens, block_size) - len(self.blocks)
        blocks = tuple(next(free) for _ in range(missing))
        self.blocks += blocks
        start, self.computed = self.computed, self.computed + num_tokens
        if self.resident:
            return ScheduledSequence(self.sequence_id, num_tokens, blocks)
        self.resident = True
        tokens = self.prompt + tuple(self.output)
        return NewSequence(
            self.sequence_id, tokens, len(self.prompt), start, num_tokens, tuple(self.blocks), self.sampling
        )

    def preempt(self) -> None:
        self.resident, self.computed, self.blocks = False, 0, []


def generate(
    executor: StepExecutor,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    chunks: Sequence[int] = (512,),
    samplings: Sequence[Sampling] | None = None,
    seed: int = 0,
    preempt: float = 0.0,
) -> list[list[int]]:
    """`count` tokens for each prompt, all in one batch. Every row's chunk is drawn from `chunks`; before every step
    each sequence gives up its blocks with probability `preempt`. A block is never given out twice."""
    chance = random.Random(seed)
    session = Session(executor)
    order = list(range(session.info.num_blocks))
    chance.shuffle(order)
    free = iter(order)
    samplings = samplings or [GREEDY] * len(prompts)
    riders = [Rider(key, *pair, count) for key, pair in enumerate(zip(prompts, samplings, strict=True))]
    while active := [rider for rider in riders if not rider.done]:
        leaving = [rider for rider in active if rider.resident and chance.random() < preempt]
        for rider in leaving:
            rider.preempt()
        rows = [rider.row(chance.choice(chunks), free, session.info.block_size) for rider in active]
        sampled = session.step(
            new_sequences=tuple(row for row in rows if isinstance(row, NewSequence)),
            scheduled=tuple(row for row in rows if isinstance(row, ScheduledSequence)),
            preempted_ids=tuple(rider.sequence_id for rider in leaving),
        ).sampled
        _deliver(riders, sampled)
    return [rider.output for rider in riders]


def _deliver(riders: list[Rider], sampled: Sequence[SampledToken]) -> None:
    for token in sampled:
        riders[token.sequence_id].output.append(token.token_id)
