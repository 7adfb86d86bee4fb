"""What a plan must hold to, checked before any of it is applied.

The cost grows with what the plan changes, not with what is resident.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from common.logprobs import MAX_LOGPROBS
from common.step import HASH_BYTES, ExecutorInfo, Fork, InvalidPlan, NewSequence, Sampling, ScheduledSequence, StepPlan
from executor_svc.sequence import HeldSequence


@dataclass(frozen=True, slots=True)
class Resident:
    """What a plan is checked against: the sequences, and how many block tables hold each block (absent: none)."""

    sequences: Mapping[int, HeldSequence]
    holders: Mapping[int, int]


class _Span(NamedTuple):
    """A row to be: it computes tokens `start` to `end` - 1 of `known`; `added` are those of its blocks it brings.

    A tuple, as there is one for every row of every step.
    """

    sequence_id: int
    start: int
    end: int
    known: int
    blocks: Sequence[int]
    added: tuple[int, ...]
    is_new: bool = False


def check_plan(plan: StepPlan, info: ExecutorInfo, resident: Resident) -> None:
    """Raises `InvalidPlan` that names the sequence or block at fault."""
    leaving = (*plan.finished_ids, *plan.preempted_ids)
    _require_distinct(leaving, "sequence {} leaves twice")
    for sequence_id in leaving:
        _require(sequence_id in resident.sequences, f"sequence {sequence_id} leaves and is not resident")
    gone = frozenset(leaving)
    spans = [_new_span(row, info, resident, gone) for row in plan.new_sequences]
    spans += [_known_span(row, resident, gone) for row in plan.scheduled]
    spans += [_fork_span(fork, info, resident, gone) for fork in plan.forks]
    _require_distinct([span.sequence_id for span in spans], "sequence {} has two rows")
    _check_sizes(spans, info, plan.num_draft_tokens)
    if plan.drafts:
        _check_drafts(plan, info, resident, {span.sequence_id: span for span in spans})
    replaced = [fork.sequence_id for fork in plan.forks if fork.sequence_id in resident.sequences]
    left = (*leaving, *replaced)
    freed = Counter(block for sequence_id in left for block in resident.sequences[sequence_id].block_ids)
    _check_blocks(spans, info, resident.holders, freed)
    _check_copies(plan, info, resident.holders, freed)
    for seal in plan.sealed:
        _require(0 <= seal.block_id < info.num_blocks, f"block {seal.block_id} is sealed and outside the pool")
        _require(len(seal.content_hash) == HASH_BYTES, f"the hash of block {seal.block_id} is not {HASH_BYTES} bytes")


def _new_span(row: NewSequence, info: ExecutorInfo, resident: Resident, gone: Set[int]) -> _Span:
    name = f"sequence {row.sequence_id}"
    _require(row.sequence_id not in resident.sequences or row.sequence_id in gone, f"{name} is resident already")
    _require(0 < row.num_prompt_tokens <= len(row.token_ids), f"{name}: num_prompt_tokens is out of range")
    _require(min(row.token_ids) >= 0, f"{name} has a negative token id")
    _require(max(row.token_ids) < info.vocab_size, f"{name} has a token outside the model's vocabulary")
    if row.sampling.grammar is not None:
        ends = row.sampling.grammar.end_token_ids
        _require(max(ends, default=0) < info.vocab_size, f"{name} ends with a token outside the model's vocabulary")
        _require(min(ends, default=0) >= 0, f"{name} ends with a negative token id")
    _require(row.num_computed_tokens >= 0, f"{name}: num_computed_tokens is negative")
    _check_sampling(row.sampling, name, info.vocab_size)
    _check_filters(row.sampling, name)
    end = row.num_computed_tokens + row.num_tokens
    return _Span(
        row.sequence_id, row.num_computed_tokens, end, len(row.token_ids), row.block_ids, row.block_ids, is_new=True
    )


def _check_filters(sampling: Sampling, name: str) -> None:
    """What is out of range, NaN too, could leave no token to draw."""
    _require(0 <= sampling.temperature < math.inf, f"{name}: temperature is out of range")
    _require(0 < sampling.top_p <= 1, f"{name}: top_p is out of range")
    _require(0 <= sampling.min_p <= 1, f"{name}: min_p is out of range")
    _require(sampling.top_k >= 0, f"{name}: top_k is negative")


def _check_sampling(sampling: Sampling, name: str, vocab_size: int) -> None:
    counts = (sampling.num_logprobs or 0, sampling.num_prompt_logprobs or 0)
    _require(max(counts) <= MAX_LOGPROBS, f"{name} asks for more than {MAX_LOGPROBS} logprobs a token")
    ids = chain(
        (token_id for token_id, _ in sampling.logit_bias),
        sampling.allowed_token_ids,
        sampling.banned_token_ids,
        sampling.end_token_ids,
        *sampling.bad_words,
    )
    _require(max(ids, default=0) < vocab_size, f"{name}: its sampling names a token outside the model's vocabulary")
    _require(all(sampling.bad_words), f"{name} has an empty bad word")
    _require(sampling.repetition_penalty > 0, f"{name}: repetition_penalty is not positive")


def _known_span(row: ScheduledSequence, resident: Resident, gone: Set[int]) -> _Span:
    held = resident.sequences.get(row.sequence_id)
    if held is None or row.sequence_id in gone:
        raise InvalidPlan(f"sequence {row.sequence_id} is not resident")
    start = held.num_computed_tokens
    blocks = [*held.block_ids, *row.new_block_ids] if row.new_block_ids else held.block_ids
    return _Span(row.sequence_id, start, start + row.num_tokens, len(held.tokens), blocks, row.new_block_ids)


def _fork_span(fork: Fork, info: ExecutorInfo, resident: Resident, gone: Set[int]) -> _Span:
    name = f"sequence {fork.sequence_id}"
    parent = resident.sequences.get(fork.parent_id)
    if parent is None or fork.parent_id in gone:
        raise InvalidPlan(f"{name} forks sequence {fork.parent_id}, which is not resident")
    _require(fork.sequence_id not in gone, f"{name} leaves and is forked")
    _require(0 <= fork.token_id < info.vocab_size, f"{name} has a token outside the model's vocabulary")
    _require(0 <= fork.num_kept_blocks <= len(parent.block_ids), f"{name} keeps blocks that its parent does not have")
    start = parent.num_computed_tokens
    blocks = (*parent.block_ids[: fork.num_kept_blocks], *fork.block_ids)
    return _Span(fork.sequence_id, start, start + 1, start + 1, blocks, blocks)


def _check_drafts(plan: StepPlan, info: ExecutorInfo, resident: Resident, spans: Mapping[int, _Span]) -> None:
    """A draft goes on from the last token of a known sequence that nothing but its logits and its seed is asked of."""
    _require_distinct([draft.sequence_id for draft in plan.drafts], "sequence {} has two drafts")
    scheduled = {row.sequence_id for row in plan.scheduled}
    for draft in plan.drafts:
        name = f"sequence {draft.sequence_id}"
        _require(draft.sequence_id in scheduled, f"{name} has a draft and is not scheduled")
        span, end = spans[draft.sequence_id], spans[draft.sequence_id].end + len(draft.token_ids)
        _require(span.end == span.known, f"{name} has a draft and does not draw")
        _require(resident.sequences[draft.sequence_id].is_plain, f"{name} has a draft and is not plain")
        _require(len(draft.token_ids) > 0, f"{name} has an empty draft")
        _require(min(draft.token_ids) >= 0, f"{name} has a negative token id")
        _require(max(draft.token_ids) < info.vocab_size, f"{name} has a token outside the model's vocabulary")
        _require(end <= len(span.blocks) * info.block_size, f"{name} has a draft longer than its last block")
        _require(end <= info.max_model_len, f"{name} has a draft beyond {info.max_model_len} tokens")


def _check_sizes(spans: list[_Span], info: ExecutorInfo, num_draft_tokens: int) -> None:
    _require(len(spans) <= info.max_sequences, f"{len(spans)} rows are more than {info.max_sequences}")
    total = sum(span.end - span.start for span in spans) + num_draft_tokens
    _require(total <= info.max_step_tokens, f"{total} tokens are more than {info.max_step_tokens}")
    for sequence_id, start, end, known, blocks, _, _ in spans:
        needed = -(-end // info.block_size)
        if start < end <= known <= info.max_model_len and len(blocks) == needed:
            continue  # the usual case, for which no problem is put into words
        name = f"sequence {sequence_id}"
        _require(end > start, f"{name} computes nothing")
        _require(end <= known, f"{name} computes {end} tokens and {known} are known")
        _require(known <= info.max_model_len, f"{name} is longer than {info.max_model_len} tokens")
        raise InvalidPlan(f"{name} has {len(blocks)} blocks and needs {needed}")


def _check_blocks(spans: list[_Span], info: ExecutorInfo, holders: Mapping[int, int], freed: Mapping[int, int]) -> None:
    """A block that is written belongs to its row alone, but for new sequences that share what the step makes full."""
    size = info.block_size
    growing = [span for span in spans if span.added]
    for span in growing:
        name = f"sequence {span.sequence_id}"
        _require_distinct(span.blocks, f"{name} names block {{}} twice")
        outside = [block for block in span.added if not 0 <= block < info.num_blocks]
        _require(not outside, f"{name} has block {outside[:1]}, which is outside the pool")
    added = Counter(block for span in growing for block in span.added)
    sharers = Counter(block for span in growing if span.is_new for block in span.blocks[: span.start // size])
    for sequence_id, start, end, _, blocks, _, _ in spans:
        for index in range(start // size, len(blocks)):
            block = blocks[index]
            held = holders.get(block, 0) - freed.get(block, 0) + added.get(block, 0)
            if held != 1 + (sharers[block] if index < end // size else 0):
                raise InvalidPlan(f"sequence {sequence_id} writes block {block}, which is shared")


def _check_copies(plan: StepPlan, info: ExecutorInfo, holders: Mapping[int, int], freed: Mapping[int, int]) -> None:
    sources = {copy.source for copy in plan.copies}
    for block in sources.union(copy.destination for copy in plan.copies):
        _require(0 <= block < info.num_blocks, f"block {block} is copied and outside the pool")
    _require_distinct([copy.destination for copy in plan.copies], "block {} is copied to twice")
    for copy in plan.copies:
        block = copy.destination
        _require(block not in sources, f"block {block} is copied from and to")
        _require(holders.get(block, 0) == freed.get(block, 0), f"block {block} is copied over and held")


def _require_distinct(values: Collection[int], problem: str) -> None:
    if len(set(values)) < len(values):
        repeated, _ = Counter(values).most_common(1)[0]
        raise InvalidPlan(problem.format(repeated))


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise InvalidPlan(problem)
