"""The vocabulary of a step: what the scheduler asks of an executor, and what it gets back.

Plain frozen dataclasses, so that the scheduler core and the tests need no gRPC; `common.wire` turns them, and
those of `common.resident`, into the messages of `protos/citybus/executor/v1` and back. Block id == page index
everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from common.grammar import Grammar
from common.logprobs import KnownLogprobs, TokenLogprobs

HASH_BYTES = 16
"""Width of a block's content hash: 128 bits cannot be collided by chance, and the key keeps it from being forced."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the tokens of a sequence are drawn, every default resolved.

    `temperature` 0 is greedy; `top_p` 1, `top_k` 0 and `min_p` 0 are off. `seed` keys the counter-based random
    numbers; the counter is the index of the generated token.

    The logits are changed before all that, in this order: `repetition_penalty` (1 is off) divides positive logits of
    tokens that prompt or answer have, and multiplies the others; `presence_penalty` and, for every occurrence,
    `frequency_penalty` are taken from tokens that the answer has; `logit_bias` (id, number), by rising id, is added.
    Not drawn are tokens outside `allowed_token_ids` (empty: all are allowed), `banned_token_ids`, `end_token_ids` while
    the answer has fewer than `min_tokens` tokens, the last token of one of `bad_words` where the answer ends with
    those before it, and what could not become a text of `grammar`. Something has to be left.

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
    grammar: Grammar | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a token follows from the model's logits, the seed and its index alone, and nothing else is told."""
        return self == Sampling(self.temperature, self.top_p, self.top_k, self.min_p, self.seed)


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
class Fork:
    """A sequence that goes on from the computed tokens of another: with `token_id`, which this step computes.

    `parent_id` is resident before the plan, and may be forked more than once. Its table is the first `num_kept_blocks`
    of the parent's, then `block_ids`. Where a sequence `sequence_id` is resident, the fork takes its place.
    """

    sequence_id: int
    parent_id: int
    token_id: int
    num_kept_blocks: int
    block_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses at the next tokens of a scheduled sequence that draws, and whose sampling is plain.

    They are computed in the blocks of its known tokens, and kept as far as it draws them.
    """

    sequence_id: int
    token_ids: tuple[int, ...]


def num_right(guesses: Sequence[int], drawn: Sequence[int]) -> int:
    """How many of the guesses are right: those before the first that is another token than the one drawn."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(guesses, drawn, strict=False)))


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

    Applied in this order: `finished_ids` and `preempted_ids` leave, and `forks` take the place of others; `copies` are
    made, `new_sequences` enter, `scheduled` ones grow, the batch is computed: its rows are the new ones, the scheduled
    ones, the forks. A sequence whose tokens are then all computed draws its next token; one of `drafts`, one for each
    guess that is right besides.
    """

    term: int
    step: int
    new_sequences: tuple[NewSequence, ...] = ()
    scheduled: tuple[ScheduledSequence, ...] = ()
    finished_ids: tuple[int, ...] = ()
    preempted_ids: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    sealed: tuple[SealedBlock, ...] = ()
    forks: tuple[Fork, ...] = ()
    drafts: tuple[Draft, ...] = ()

    @property
    def num_draft_tokens(self) -> int:
        """Tokens the step computes that are guesses."""
        return sum(len(draft.token_ids) for draft in self.drafts)

    @property
    def num_tokens(self) -> int:
        """Tokens the step computes."""
        known = sum(row.num_tokens for row in self.scheduled) + len(self.forks)
        return sum(row.num_tokens for row in self.new_sequences) + known + self.num_draft_tokens


class SampledToken(NamedTuple):
    """A token that a sequence drew in a step, with what it scored where that is asked for.

    A tuple, as there is one for every row of every step.
    """

    sequence_id: int
    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class FailedSequence:
    """A sequence whose answer cannot go on; `error` tells whoever asked for it why."""

    sequence_id: int
    error: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step gave: `sampled` in the order of the plan's rows.

    Those of `failed` are among them, with a token that means nothing; they stay resident until they leave.
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
    failed: tuple[FailedSequence, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutorInfo:
    """Facts and capacity of an executor; they change only with `epoch` (16 random bytes, new at every start).

    `max_model_len` is in tokens per sequence, `block_size` in tokens per block; a step holds at most
    `max_sequences` sequences and computes at most `max_step_tokens` tokens. `model` and
    `tokenizer_digest` are those of a `common.model_identity.ModelIdentity`.
    """

    epoch: bytes
    model: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_sequences: int
    max_step_tokens: int
    tokenizer_digest: bytes = b""


class StaleTerm(Exception):
    """A plan of a scheduler that has been replaced by a newer one, or a session for another epoch."""


class InvalidPlan(Exception):
    """A plan that contradicts what the executor holds: a fault of the scheduler, never of a request."""
