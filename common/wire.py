"""The step vocabulary as protobuf messages, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from citybus.executor.v1 import executor_pb2 as pb
from common.resident import ResidentPage, ResidentSequence
from common.step import (
    HASH_BYTES,
    BlockCopy,
    Draft,
    ExecutorInfo,
    FailedSequence,
    Fork,
    InvalidPlan,
    NewSequence,
    ScheduledSequence,
    SealedBlock,
    StepPlan,
    StepResult,
)
from common.wire_sampling import add_logprobs, known_from_pb, sampled_from_pb, sampling_from_pb, sampling_to_pb


def plan_to_pb(plan: StepPlan) -> pb.StepPlan:
    """The message for a plan: columns, with those left out that would only repeat their usual value."""
    rows = plan.scheduled
    grown = [(index, row.new_block_ids) for index, row in enumerate(rows) if row.new_block_ids]
    return pb.StepPlan(
        term=plan.term,
        step=plan.step,
        finished_ids=plan.finished_ids,
        preempted_ids=plan.preempted_ids,
        copy_sources=[copy.source for copy in plan.copies],
        copy_destinations=[copy.destination for copy in plan.copies],
        new_sequences=[_new_sequence_to_pb(row) for row in plan.new_sequences],
        ids=[row.sequence_id for row in rows],
        num_tokens=_column([row.num_tokens for row in rows]),
        grown_rows=[index for index, _ in grown],
        num_grown_blocks=_column([len(blocks) for _, blocks in grown]),
        grown_blocks=[block for _, blocks in grown for block in blocks],
        sealed_blocks=[seal.block_id for seal in plan.sealed],
        sealed_hashes=b"".join(seal.content_hash for seal in plan.sealed),
        forks=[_fork_to_pb(fork) for fork in plan.forks],
        drafts=[pb.Draft(id=draft.sequence_id, token_ids=draft.token_ids) for draft in plan.drafts],
    )


def plan_from_pb(message: pb.StepPlan) -> StepPlan:
    """The plan in a message. Raises `InvalidPlan` where its columns do not fit each other."""
    rows = len(message.ids)
    num_tokens = _expand(message.num_tokens, rows, "num_tokens")
    grown = _grown_blocks(message, rows)
    if len(message.copy_sources) != len(message.copy_destinations):
        raise InvalidPlan("copy_sources and copy_destinations differ in length")
    return StepPlan(
        term=message.term,
        step=message.step,
        new_sequences=tuple(_new_sequence_from_pb(row) for row in message.new_sequences),
        scheduled=tuple(
            ScheduledSequence(sequence_id, count, grown.get(index, ()))
            for index, (sequence_id, count) in enumerate(zip(message.ids, num_tokens, strict=True))
        ),
        finished_ids=tuple(message.finished_ids),
        preempted_ids=tuple(message.preempted_ids),
        copies=tuple(
            BlockCopy(source, destination)
            for source, destination in zip(message.copy_sources, message.copy_destinations, strict=True)
        ),
        sealed=tuple(_sealed(message.sealed_blocks, message.sealed_hashes)),
        forks=tuple(_fork_from_pb(fork) for fork in message.forks),
        drafts=tuple(Draft(draft.id, tuple(draft.token_ids)) for draft in message.drafts),
    )


def result_to_pb(result: StepResult) -> pb.StepResult:
    """The message for a result."""
    message = pb.StepResult(
        step=result.step,
        ids=[token.sequence_id for token in result.sampled],
        token_ids=[token.token_id for token in result.sampled],
        execute_ns=result.execute_ns,
        idle_ns=result.idle_ns,
        error=result.error or "",
        failed=[pb.FailedSequence(id=row.sequence_id, error=row.error) for row in result.failed],
    )
    add_logprobs(message, result.sampled, result.known_logprobs)
    return message


def result_from_pb(message: pb.StepResult) -> StepResult:
    """The result in a message. Raises `InvalidPlan` where its columns do not fit each other."""
    return StepResult(
        step=message.step,
        sampled=sampled_from_pb(message),
        execute_ns=message.execute_ns,
        idle_ns=message.idle_ns,
        error=message.error or None,
        failed=tuple(FailedSequence(row.id, row.error) for row in message.failed),
        known_logprobs=known_from_pb(message),
    )


def info_to_pb(info: ExecutorInfo) -> pb.DescribeResponse:
    """The message for an executor's facts."""
    return pb.DescribeResponse(
        epoch=info.epoch,
        model=info.model,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_sequences=info.max_sequences,
        max_step_tokens=info.max_step_tokens,
        tokenizer_digest=info.tokenizer_digest,
    )


def info_from_pb(message: pb.DescribeResponse) -> ExecutorInfo:
    """The facts in a message."""
    return ExecutorInfo(
        epoch=message.epoch,
        model=message.model,
        vocab_size=message.vocab_size,
        max_model_len=message.max_model_len,
        block_size=message.block_size,
        num_blocks=message.num_blocks,
        max_sequences=message.max_sequences,
        max_step_tokens=message.max_step_tokens,
        tokenizer_digest=message.tokenizer_digest,
    )


def page_to_pb(page: ResidentPage) -> pb.ReconcileResponse:
    """The message for a page of what is resident."""
    return pb.ReconcileResponse(
        epoch=page.epoch,
        last_step=page.last_step,
        sequences=[_resident_to_pb(sequence) for sequence in page.sequences],
        cached_blocks=[seal.block_id for seal in page.cached],
        cached_hashes=b"".join(seal.content_hash for seal in page.cached),
    )


def page_from_pb(message: pb.ReconcileResponse) -> ResidentPage:
    """The page in a message. Raises `InvalidPlan` where its columns do not fit each other."""
    return ResidentPage(
        epoch=message.epoch,
        last_step=message.last_step,
        sequences=tuple(_resident_from_pb(sequence) for sequence in message.sequences),
        cached=tuple(_sealed(message.cached_blocks, message.cached_hashes)),
    )


def _column(values: list[int]) -> list[int]:
    """A column that is left out where every value is 1, as in a step of decodes only."""
    return [] if values.count(1) == len(values) else values


def _expand(column: Iterable[int], rows: int, name: str) -> list[int]:
    values = list(column) or [1] * rows
    if len(values) != rows:
        raise InvalidPlan(f"{name} has {len(values)} values for {rows} rows")
    return values


def _grown_blocks(message: pb.StepPlan, rows: int) -> dict[int, tuple[int, ...]]:
    """Row index -> the blocks it gets."""
    counts = _expand(message.num_grown_blocks, len(message.grown_rows), "num_grown_blocks")
    distinct = {row for row in message.grown_rows if row < rows}
    if sum(counts) != len(message.grown_blocks) or len(distinct) != len(message.grown_rows):
        raise InvalidPlan("grown_rows, num_grown_blocks and grown_blocks do not fit each other")
    blocks = iter(message.grown_blocks)
    return {
        row: tuple(next(blocks) for _ in range(count)) for row, count in zip(message.grown_rows, counts, strict=True)
    }


def _sealed(blocks: Iterable[int], hashes: bytes) -> Iterator[SealedBlock]:
    block_ids = list(blocks)
    if len(hashes) != HASH_BYTES * len(block_ids):
        raise InvalidPlan(f"{len(hashes)} bytes of hashes for {len(block_ids)} blocks of {HASH_BYTES} each")
    for index, block_id in enumerate(block_ids):
        yield SealedBlock(block_id, hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES])


def _new_sequence_to_pb(row: NewSequence) -> pb.NewSequence:
    return pb.NewSequence(
        id=row.sequence_id,
        token_ids=row.token_ids,
        num_prompt_tokens=row.num_prompt_tokens,
        num_computed_tokens=row.num_computed_tokens,
        num_tokens=row.num_tokens,
        block_ids=row.block_ids,
        sampling=sampling_to_pb(row.sampling),
    )


def _new_sequence_from_pb(message: pb.NewSequence) -> NewSequence:
    return NewSequence(
        sequence_id=message.id,
        token_ids=tuple(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        num_computed_tokens=message.num_computed_tokens,
        num_tokens=message.num_tokens,
        block_ids=tuple(message.block_ids),
        sampling=sampling_from_pb(message.sampling),
    )


def _fork_to_pb(fork: Fork) -> pb.Fork:
    return pb.Fork(
        id=fork.sequence_id,
        parent_id=fork.parent_id,
        token_id=fork.token_id,
        num_kept_blocks=fork.num_kept_blocks,
        block_ids=fork.block_ids,
    )


def _fork_from_pb(message: pb.Fork) -> Fork:
    return Fork(message.id, message.parent_id, message.token_id, message.num_kept_blocks, tuple(message.block_ids))


def _resident_to_pb(sequence: ResidentSequence) -> pb.ResidentSequence:
    return pb.ResidentSequence(
        id=sequence.sequence_id,
        token_ids=sequence.token_ids,
        num_prompt_tokens=sequence.num_prompt_tokens,
        num_computed_tokens=sequence.num_computed_tokens,
        block_ids=sequence.block_ids,
        sampling=sampling_to_pb(sequence.sampling),
        num_reused_tokens=sequence.num_reused_tokens,
    )


def _resident_from_pb(message: pb.ResidentSequence) -> ResidentSequence:
    return ResidentSequence(
        sequence_id=message.id,
        token_ids=tuple(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        num_computed_tokens=message.num_computed_tokens,
        block_ids=tuple(message.block_ids),
        sampling=sampling_from_pb(message.sampling),
        num_reused_tokens=message.num_reused_tokens,
    )
