"""The vocabulary of a step: what the scheduler asks of an executor, and what it gets back.

Plain frozen dataclasses, so that the scheduler core and the tests need no gRPC; `common.wire` turns them into the
messages of `protos/citybus/executor/v1` and back. Block id == page index everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

HASH_BYTES = 16
"""Width of a block's content hash: 128 bits cannot be collided by chance, and the key keeps it from being forced."""


MAX_LOGPROBS = 32
"""Most of the likeliest tokens that a step reports beside each drawn one: a beam search of 16 wants twice its width."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a sequence are drawn, every default resolved.

    `temperature` 0 is greedy; `top_p` 1, `top_k` 0 and `min_p` 0 are off. `seed` keys the counter-based random
    numbers; the counter is the index of the generated token.

    The logits are changed before all that, in this order: `repetition_penalty` (1 is off) divides positive logits of
    tokens that prompt or answer have, and multiplies the others; `presence_penalty` and, for every occurrence,
    `frequency_penalty` are taken from tokens that the answer has; `logit_bias` (id, number), by rising id, is added.
    Not drawn are tokens outside `allowed_token_ids` (empty: all are allowed), `banned_token_ids`, `end_token_ids` while
    the answer has fewer than `min_tokens` tokens, and the last token of one of `bad_words` where the answer ends with
    those before it. Something has to be left.

    `num_logprobs` asks for the log-probability of every token drawn and of that many of the likeliest,
    `num_prompt_logprobs` for the same of the prompt's tokens but the first; None: no.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    end_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence sent whole: at its first admission, and again after a preemption or a restart of the executor.

    `token_ids` are all tokens known, of which the first `num_prompt_tokens` are the prompt. The keys and values of
    the first `num_computed_tokens` are in `block_ids` already; this step computes the next `num_tokens`.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_tokens: int
    block_ids: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """A sequence the executor holds: computes its next `num_tokens` and is given `new_block_ids` for them."""

    sequence_id: int
    num_tokens: int
    new_block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy a whole block, keys and values of every layer, before anything is computed."""

    source: int
    destination: int


@dataclass(frozen=True, slots=True)
class SealedBlock:
    """A block that is full and shareable from this step on, with its content hash (`HASH_BYTES` bytes)."""

    block_id: int
    content_hash: bytes


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes, as a difference to what the executor holds.

    Applied in this order: `finished_ids` and `preempted_ids` leave, `copies` are made, `new_sequences` enter,
    `scheduled` ones grow, the batch is computed. A sequence whose tokens are then all computed draws its next token.
    """

    term: int
    step: int
    new_sequences: tuple[NewSequence, ...] = ()
    scheduled: tuple[ScheduledSequence, ...] = ()
    finished_ids: tuple[int, ...] = ()
    preempted_ids: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    sealed: tuple[SealedBlock, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens the step computes."""
        return sum(row.num_tokens for row in self.new_sequences) + sum(row.num_tokens for row in self.scheduled)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-softmax of the model's own logits, before anything that a `Sampling` says.

    `logprob` is the token's own, `rank` its place (1 is the likeliest; of equals the lower id comes first);
    `top_ids` are the likeliest tokens in that order, and `top_logprobs` theirs.
    """

    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class SampledToken(NamedTuple):
    """The token a sequence drew in a step, with what it scored where that is asked for.

    A tuple, as there is one for every row of every step.
    """

    sequence_id: int
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class KnownLogprobs:
    """Of known tokens number `first_position` (1 or more) and on: of a prompt, or an answer sent with its sequence."""

    sequence_id: int
    first_position: int
    tokens: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step gave: `sampled` in the order of the plan, new sequences first.

    `known_logprobs` are of tokens that were not drawn but computed past, where the sampling asks for them.

    `error` says why the step failed: then nothing was sampled and its sequences are no longer resident.
    `execute_ns` and `idle_ns` are nanoseconds: spent on the step, and without work before it.
    """

    step: int
    sampled: tuple[SampledToken, ...] = ()
    execute_ns: int = 0
    idle_ns: int = 0
    error: str | None = None
    known_logprobs: tuple[KnownLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """Facts and capacity of an executor; they change only with `epoch` (16 random bytes, new at every start).

    `max_model_len` is in tokens per sequence, `block_size` in tokens per block; a step holds at most
    `max_sequences` sequences and computes at most `max_step_tokens` tokens.
    """

    epoch: bytes
    model: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_sequences: int
    max_step_tokens: int


@dataclass(frozen=True, slots=True)
class ResidentSequence:
    """A sequence an executor holds, the last drawn token included in `token_ids`.

    `num_reused_tokens` leading ones did not have to be computed when it came: its blocks held them already.
    """

    sequence_id: int
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: tuple[int, ...]
    sampling: Sampling
    num_reused_tokens: int


@dataclass(frozen=True, slots=True)
class ResidentPage:
    """One page of what an executor holds, for a scheduler that takes over. `last_step` 0: no step was executed."""

    epoch: bytes
    last_step: int
    sequences: tuple[ResidentSequence, ...] = ()
    cached: tuple[SealedBlock, ...] = ()


class StaleTerm(Exception):
    """A plan of a scheduler that has been replaced by a newer one, or a session for another epoch."""


class InvalidPlan(Exception):
    """A plan that contradicts what the executor holds: a fault of the scheduler, never of a request."""


class StepExecutor(Protocol):
    """What `executor_svc.server` puts on the wire: the real engine, and the fake one in tests.

    Calls come from one thread at a time.
    """

    def describe(self) -> ExecutorInfo:
        """Facts and capacity."""

    def open(self, epoch: bytes, resume: bool) -> int:
        """Start a session; returns its term, larger than every one before.

        Drops everything resident unless `resume`. Raises `StaleTerm` where `epoch` is not this executor's.
        """

    def step(self, plan: StepPlan) -> StepResult:
        """Apply and compute one plan.

        Raises `StaleTerm` for a plan of an older term and `InvalidPlan` for one that does not fit what is resident;
        a failure of the computation itself is a result with `error`.
        """

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        """What is resident, at least one page, each with at most `page_size` sequences and cached blocks."""
