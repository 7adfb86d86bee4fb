"""A step executor without a model, whose tokens depend on every slot it was told to read.

Computing a token stores a number made of it and of the slot before in the slot that the block table names, as keys and
values depend on the token and on all before it; drawing one reads all slots of the sequence back through the table and
hashes them. A wrong block table, a missing copy, a block shared across prefixes or reused too early, a lost token: each
changes the output, or meets a slot that was never written and raises `PoisonRead`.
"""

from __future__ import annotations

import math
import random
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from common.logprobs import TokenLogprobs
from common.resident import ResidentPage, ResidentSequence
from common.step import ExecutorInfo, InvalidPlan, SampledToken, Sampling, SealedBlock, StaleTerm, StepPlan, StepResult
from tests.plan_check import Resident, Row, checked_rows

Script = Callable[[Sequence[int], int], int | None]
"""(all tokens of the sequence, index of the token to draw) -> that token, or None for the hashed one."""

SLOT = array("I").itemsize
POISON = b"\xff" * SLOT
"""Not found in any run of slots, aligned or not: a slot's number has 31 bits, so its top byte is below 0x80."""

INFO = ExecutorInfo(
    epoch=b"fake-epoch-00001",
    model="fake",
    vocab_size=101,
    max_model_len=512,
    block_size=16,
    num_blocks=64,
    max_sequences=64,
    max_step_tokens=512,
)


class PoisonRead(AssertionError):
    """A slot is read that nothing was stored in since its block was handed out, or a block has another's name."""


def next_slot(before: int, token: int) -> int:
    """What computing `token` stores behind a slot that holds `before` (0 at the start of a sequence): 31 bits."""
    return ((before ^ (token + 1)) * 0x01000193 + (before >> 15)) & 0x7FFFFFFF


def hashed_token(slots: bytes, index: int, sampling: Sampling, vocab_size: int) -> int:
    """A token that depends on every slot, and on the random numbers where the sampling has any."""
    key = b"greedy"
    if sampling.temperature > 0:
        filters = struct.pack("<ffIf", sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
        key = struct.pack("<QQ", sampling.seed, index) + filters
    return int.from_bytes(blake2b(slots, digest_size=8, key=key).digest(), "little") % vocab_size


def hashed_logprobs(slots: bytes, token: int, num_top: int, vocab_size: int) -> TokenLogprobs:
    """Log-probabilities that depend on every slot: those of `token`, and of the `num_top` likeliest."""
    chance = random.Random(blake2b(slots, digest_size=8, key=b"logprobs").digest())
    weights = [chance.random() ** 4 for _ in range(vocab_size)]
    total = sum(weights)
    logprobs = [math.log(max(weight, 1e-30) / total) for weight in weights]
    order = sorted(range(vocab_size), key=lambda each: -logprobs[each])
    top = order[:num_top]
    return TokenLogprobs(logprobs[token], 1 + order.index(token), tuple(top), tuple(logprobs[each] for each in top))


def slots_of(tokens: Sequence[int]) -> bytes:
    """What computing `tokens` stores."""
    slots = array("I")
    for token in tokens:
        slots.append(next_slot(slots[-1] if slots else 0, token))
    return slots.tobytes()


def reference_output(
    prompt: Sequence[int], n: int, sampling: Sampling, vocab_size: int, script: Script | None = None
) -> tuple[int, ...]:
    """REF: the first `n` tokens of a prompt, with no batch, no blocks and no cache."""
    tokens = list(prompt)
    slots = array("I")
    for index in range(n):
        for token in tokens[len(slots) :]:
            slots.append(next_slot(slots[-1] if slots else 0, token))
        forced = script(tokens, index) if script is not None else None
        tokens.append(hashed_token(slots.tobytes(), index, sampling, vocab_size) if forced is None else forced)
    return tuple(tokens[len(prompt) :])


class FakeExecutor:
    """`common.step_executor.StepExecutor` over a pool of numbers.

    `script` forces tokens; `fail` gives the reason why a plan's computation fails, or None; every step takes at
    least `step_time_s` seconds. A failed step stores nothing, the worst a real one can do.
    """

    def __init__(
        self,
        info: ExecutorInfo = INFO,
        script: Script | None = None,
        fail: Callable[[StepPlan], str | None] | None = None,
        step_time_s: float = 0.0,
    ) -> None:
        self.info = info
        self.script = script
        self.fail = fail
        self.step_time_s = step_time_s
        self.sequences: dict[int, Resident] = {}
        self._contents: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self._pool = bytearray(POISON * (info.num_blocks * info.block_size))
        self._term = 0
        self._last_step = 0
        self._numbered = False
        self._idle_since = time.perf_counter_ns()

    def describe(self) -> ExecutorInfo:
        """The facts it was made with."""
        return self.info

    def open(self, epoch: bytes, resume: bool) -> int:
        """As `StepExecutor.open`."""
        if epoch != self.info.epoch:
            raise StaleTerm("the executor was restarted: its epoch is another one")
        if not resume:
            self.sequences.clear()
            self._hashes.clear()
            self._pool[:] = POISON * (len(self._pool) // SLOT)
            self._last_step = 0
        self._term += 1
        self._numbered = False
        return self._term

    def step(self, plan: StepPlan) -> StepResult:
        """As `StepExecutor.step`; a plan that is refused changes nothing."""
        started = time.perf_counter_ns()
        self._check_order(plan)
        rows = checked_rows(plan, self.info, self.sequences)
        self._leave(plan)
        error = self.fail(plan) if self.fail is not None else None
        sampled = self._fail_rows(rows) if error is not None else self._compute(plan, rows)
        self._last_step, self._numbered = plan.step, True
        time.sleep(max(0.0, self.step_time_s - (time.perf_counter_ns() - started) / 1e9))
        ended = time.perf_counter_ns()
        idle, self._idle_since = started - self._idle_since, ended
        return StepResult(plan.step, sampled, execute_ns=ended - started, idle_ns=idle, error=error)

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        """As `StepExecutor.resident`."""
        sequences = [
            ResidentSequence(key, tuple(s.tokens), s.num_prompt, s.computed, tuple(s.blocks), s.sampling, s.reused)
            for key, s in self.sequences.items()
        ]
        cached = [SealedBlock(block, content_hash) for block, content_hash in sorted(self._hashes.items())]
        for start in range(0, max(len(sequences), len(cached), 1), page_size):
            part = slice(start, start + page_size)
            yield ResidentPage(self.info.epoch, self._last_step, tuple(sequences[part]), tuple(cached[part]))

    def _check_order(self, plan: StepPlan) -> None:
        if plan.term < self._term:
            raise StaleTerm(f"term {plan.term} ended: {self._term} holds the executor")
        if plan.term > self._term:
            raise InvalidPlan(f"term {plan.term} was never granted")
        if plan.step <= self._last_step or (self._numbered and plan.step != self._last_step + 1):
            raise InvalidPlan(f"step {plan.step} after {self._last_step}")

    def _leave(self, plan: StepPlan) -> None:
        for sequence_id in (*plan.finished_ids, *plan.preempted_ids):
            self.sequences.pop(sequence_id, None)

    def _fail_rows(self, rows: list[Row]) -> tuple[SampledToken, ...]:
        for row in rows:
            self.sequences.pop(row.sequence_id, None)
        return ()

    def _compute(self, plan: StepPlan, rows: list[Row]) -> tuple[SampledToken, ...]:
        forked = {fork.sequence_id: self.sequences[fork.parent_id].forked(fork) for fork in plan.forks}
        self._copy_blocks(plan)
        self.sequences |= forked
        for new in plan.new_sequences:
            self.sequences[new.sequence_id] = Resident.of(new)
        self._store(rows)
        sampled = tuple(token for row in rows if row.end == row.known for token in self._draw_row(row))
        for seal in plan.sealed:
            self._seal(seal)
        return sampled

    def _copy_blocks(self, plan: StepPlan) -> None:
        contents = [self._block(copy.source) for copy in plan.copies]
        for copy, content in zip(plan.copies, contents, strict=True):
            self._fill(copy.destination, content)

    def _store(self, rows: list[Row]) -> None:
        """Store every row; a row may build on what another one stores in the same step, so order is found here."""
        for row in rows:
            held = self.sequences[row.sequence_id]
            held.blocks[:] = row.blocks
            held.computed = row.end
            self._forget(row)
        waiting = rows
        while waiting:
            ready = [row for row in waiting if self._before(row) != POISON] or waiting
            for row in ready:
                self._store_row(row)
            waiting = [row for row in waiting if row not in ready]

    def _forget(self, row: Row) -> None:
        """What the slots that the row writes held is gone, and so are the names of their blocks."""
        size = self.info.block_size
        for position in range(row.computed, row.end):
            self._pool[self._at(row.blocks, position)] = POISON
        for block in row.blocks[-(-row.computed // size) :]:
            self._fill(block, POISON * size)
        for block in row.written(size):
            self._hashes.pop(block, None)

    def _before(self, row: Row) -> bytes:
        """The slot before the row's first."""
        return bytes(self._pool[self._at(row.blocks, row.computed - 1)]) if row.computed else bytes(SLOT)

    def _store_row(self, row: Row) -> None:
        tokens = [*self.sequences[row.sequence_id].tokens, *row.draft]
        before = int.from_bytes(self._before(row), "little")
        for position in range(row.computed, row.end + len(row.draft)):
            before = next_slot(before, tokens[position])
            self._pool[self._at(row.blocks, position)] = before.to_bytes(SLOT, "little")

    def _at(self, blocks: Sequence[int], position: int) -> slice:
        """Where in the pool the slot of a position is."""
        index, offset = divmod(position, self.info.block_size)
        start = (blocks[index] * self.info.block_size + offset) * SLOT
        return slice(start, start + SLOT)

    def _seal(self, seal: SealedBlock) -> None:
        """Equal names must mean equal content, whenever they were given."""
        content = self._block(seal.block_id)
        if POISON in content:
            raise PoisonRead(f"block {seal.block_id} is sealed, and a slot of it was never written")
        if self._contents.setdefault(seal.content_hash, hash(content)) != hash(content):
            raise PoisonRead(f"block {seal.block_id} is sealed with the name of another content")
        self._hashes[seal.block_id] = seal.content_hash

    def _draw_row(self, row: Row) -> Iterator[SampledToken]:
        """One token, and one behind each guess for as long as they are right. What was stored for a wrong one stays."""
        drawn = self._draw(row.sequence_id)
        yield drawn
        for guess in row.draft:
            if drawn.token_id != guess:
                return
            self.sequences[row.sequence_id].computed += 1
            drawn = self._draw(row.sequence_id)
            yield drawn

    def _draw(self, sequence_id: int) -> SampledToken:
        held = self.sequences[sequence_id]
        slots = b"".join(map(self._block, held.blocks))[: held.computed * SLOT]
        if POISON in slots:
            raise PoisonRead(f"sequence {sequence_id} reads a slot that was never written, table {held.blocks}")
        index = len(held.tokens) - held.num_prompt
        token = self.script(held.tokens, index) if self.script is not None else None
        if token is None:
            token = hashed_token(slots, index, held.sampling, self.info.vocab_size)
        held.tokens.append(token)
        num_top = held.sampling.num_logprobs
        found = None if num_top is None else hashed_logprobs(slots, token, num_top, self.info.vocab_size)
        return SampledToken(sequence_id, token, found)

    def _block(self, block_id: int) -> bytes:
        width = self.info.block_size * SLOT
        return bytes(self._pool[block_id * width : (block_id + 1) * width])

    def _fill(self, block_id: int, content: bytes) -> None:
        self._pool[block_id * len(content) : (block_id + 1) * len(content)] = content
        self._hashes.pop(block_id, None)


def restarted(executor: FakeExecutor, **changes: int) -> FakeExecutor:
    """The same executor after a crash: another epoch, nothing resident, and `changes` to its facts."""
    number = int(executor.info.epoch[-5:]) + 1
    facts: dict[str, Any] = {"epoch": f"fake-epoch-{number:05}".encode()} | changes
    info = replace(executor.info, **facts)
    return FakeExecutor(info, executor.script, executor.fail, executor.step_time_s)
