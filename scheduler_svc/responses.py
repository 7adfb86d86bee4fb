"""What the generation service answers with."""

from __future__ import annotations

from citybus.v1 import generation_pb2 as pb
from scheduler_svc.core.request import FinishReason, Outcome
from scheduler_svc.output_stream import Delta

_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.DEADLINE: pb.FINISH_REASON_DEADLINE,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}


def response_of(delta: Delta) -> pb.GenerateResponse:
    """The message for the next part of an answer."""
    return pb.GenerateResponse(
        first_index=delta.first_index,
        sample=delta.sample,
        token_ids=delta.token_ids,
        text=delta.text,
        finish=_finish(delta.outcome, delta.stop_text) if delta.outcome else None,
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
    if stop_text is not None:
        finish.stop_text = stop_text
    elif outcome.stop_token_id is not None:
        finish.stop_token_id = outcome.stop_token_id
    return finish
