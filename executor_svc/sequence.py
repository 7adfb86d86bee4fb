"""A resident sequence, and what a step computes of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from common.resident import ResidentSequence
from common.step import Sampling, num_right
from executor_svc.constraints import Constraint
from kernels.sample_tokens import GREEDY_BELOW

BlockIds: TypeAlias = "array[int]"

UNKNOWN_TOKEN = -1
"""Stands for a token that is drawn, and that the host does not know yet."""


def block_table(blocks: Iterable[int] = ()) -> BlockIds:
    """A sequence's blocks, as int64 one after the other, of which a step's tables are copied without a look at them."""
    return array("q", blocks)


@dataclass(slots=True)
class HeldSequence:
    """What the executor remembers of a sequence between steps; `tokens` has the last drawn one, not yet computed.

    `changes_logits`: its sampling asks for more than the model's own logits.
    """

    sequence_id: int
    tokens: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: BlockIds
    sampling: Sampling
    num_reused_tokens: int
    constraint: Constraint | None = None
    """Where the answer stands in its grammar; none for one that has no grammar."""
    changes_logits: bool = field(init=False)
    is_plain: bool = field(init=False)
    is_greedy: bool = field(init=False)
    """Whether each of its tokens is the model's likeliest, and nothing else is told of them."""

    def __post_init__(self) -> None:
        self.changes_logits = changes_logits(self.sampling)
        self.is_plain = self.sampling.is_plain
        self.is_greedy = self.is_plain and self.sampling.temperature <= GREEDY_BELOW

    @property
    def num_generated(self) -> int:
        """Tokens that are not the prompt: the index of the next one to draw."""
        return len(self.tokens) - self.num_prompt_tokens

    def fork(self, sequence_id: int, token_id: int) -> HeldSequence:
        """Another one with the computed tokens of this and then `token_id`, without blocks."""
        computed = self.num_computed_tokens
        tokens = [*self.tokens[:computed], token_id]
        return HeldSequence(
            sequence_id, tokens, self.num_prompt_tokens, computed, block_table(), self.sampling, self.num_reused_tokens
        )

    def report(self) -> ResidentSequence:
        """For a scheduler that takes over. What was drawn last for an answer that cannot go on means nothing: only the
        prompt is told of it, which is less than is computed."""
        stuck = self.constraint is not None and self.constraint.has_failed
        return ResidentSequence(
            sequence_id=self.sequence_id,
            token_ids=tuple(self.tokens[: self.num_prompt_tokens] if stuck else self.tokens),
            num_prompt_tokens=self.num_prompt_tokens,
            num_computed_tokens=self.num_computed_tokens,
            block_ids=tuple(self.block_ids),
            sampling=self.sampling,
            num_reused_tokens=self.num_reused_tokens,
        )


class Row(NamedTuple):
    """Tokens `start` to `end` - 1 of a sequence, computed in one step; `draws` where no known token is left after.

    The last of them may be a `draft`: guesses at what is drawn from the tokens before. A tuple, as there is one for
    every row of every step.
    """

    sequence: HeldSequence
    start: int
    end: int
    draws: bool
    draft: tuple[int, ...] = ()

    @property
    def num_drawn(self) -> int:
        """Tokens drawn."""
        return 1 + len(self.draft) if self.draws else 0

    @property
    def drawn_indexes(self) -> range:
        """Indexes of the generated tokens that are drawn: the next one, and one behind each guess."""
        first = self.sequence.num_generated
        return range(first, first + 1 + len(self.draft)) if self.draws else range(0)

    def num_valid(self, drawn: Sequence[int]) -> int:
        """How many of the tokens drawn count: up to the first that was guessed otherwise, itself included."""
        return min(len(drawn), 1 + num_right(self.draft, drawn))

    @property
    def scored(self) -> range:
        """Positions whose logits say how likely the next token is, which is known, where the sequence asks for that."""
        held, sampling = self.sequence, self.sequence.sampling
        if sampling.num_logprobs is None and sampling.num_prompt_logprobs is None:
            return range(0)
        last_of_prompt = held.num_prompt_tokens - 1
        first = self.start if sampling.num_prompt_logprobs is not None else max(self.start, last_of_prompt)
        stop = last_of_prompt if sampling.num_logprobs is None else len(held.tokens) - 1
        return range(first, max(first, min(self.end, stop)))

    def slots(self, block_size: int) -> list[int]:
        """Where the keys and values of the tokens go."""
        blocks = self.sequence.block_ids
        return [
            blocks[position // block_size] * block_size + position % block_size
            for position in range(self.start, self.end)
        ]


def has_penalties(sampling: Sampling) -> bool:
    """Whether tokens that are there already become less likely, or more."""
    penalties = (sampling.repetition_penalty - 1, sampling.presence_penalty, sampling.frequency_penalty)
    return any(penalties)


def changes_logits(sampling: Sampling) -> bool:
    """Whether there is anything to do between the model and the draw."""
    bans = (sampling.allowed_token_ids, sampling.banned_token_ids, sampling.min_tokens, sampling.bad_words)
    return has_penalties(sampling) or bool(sampling.logit_bias) or any(bans)
