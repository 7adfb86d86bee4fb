"""What the generation service answers with."""

from __future__ import annotations

from collections.abc import Iterator

from citybus.v1 import generation_pb2 as pb
from common.logprobs import TokenLogprobs
from scheduler_svc.annotations import Annotations
from scheduler_svc.core.request import FinishReason, Outcome
from scheduler_svc.output_stream import Delta

_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.DEADLINE: pb.FINISH_REASON_DEADLINE,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}


def parts_of(delta: Delta, most_tokens: int) -> Iterator[Delta]:
    """The same in parts of at most `most_tokens` tokens; the text comes with the last."""
    token_ids, first = delta.token_ids, delta.first_index
    last = max(0, len(token_ids) - 1) // most_tokens * most_tokens
    for start in range(0, last, most_tokens):
        part = token_ids[start : start + most_tokens]
        yield Delta(first + start, part, "", sample=delta.sample, told_as=delta.told_as)
    yield delta._replace(first_index=first + last, token_ids=token_ids[last:])


def response_of(
    delta: Delta, annotations: Annotations | None = None, prompt: Annotations | None = None
) -> pb.GenerateResponse:
    """The message for the next part of an answer; `annotations` are its own, `prompt` those that have the prompt."""
    response = pb.GenerateResponse(
        first_index=delta.first_index,
        sample=delta.number,
        token_ids=delta.token_ids,
        text=delta.text,
        finish=_finish(delta.outcome, delta.stop_text) if delta.outcome else None,
    )
    if annotations is not None:
        response.logprobs.extend(map(_scores, annotations.of_tokens(delta.indexes)))
    notes = prompt.of_prompt() if prompt is not None and delta.first_index == 0 else None
    if notes is not None:
        told = pb.Prompt(token_ids=notes.token_ids, text=notes.text, logprobs=map(_scores, notes.scores))
        response.prompt.CopyFrom(told)
    return response


def _scores(score: TokenLogprobs | None) -> pb.TokenLogprobs:
    if score is None:
        return pb.TokenLogprobs()
    return pb.TokenLogprobs(
        logprob=score.logprob, rank=score.rank, top_ids=score.top_ids, top_logprobs=score.top_logprobs
    )


def _finish(outcome: Outcome, stop_text: str | None) -> pb.Finish:
    finish = pb.Finish(
        reason=_REASONS[outcome.reason],
        usage=pb.Usage(
            prompt_tokens=outcome.num_prompt_tokens,
            completion_tokens=outcome.num_output_tokens,
            cached_tokens=outcome.num_cached_tokens,
        ),
        timings=pb.Timings(
            queued_ms=1000 * (outcome.total_s if outcome.queued_s is None else outcome.queued_s),
            first_token_ms=1000 * (outcome.first_token_s or 0.0),
            total_ms=1000 * outcome.total_s,
        ),
    )
    if outcome.score is not None:
        finish.score = outcome.score
    if stop_text is not None:
        finish.stop_text = stop_text
    elif outcome.stop_token_id is not None:
        finish.stop_token_id = outcome.stop_token_id
    return finish
