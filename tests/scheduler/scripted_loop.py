"""A loop without core and executor: each request is answered from a script, one token a turn of the event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

from common.errors import CitybusError
from common.step import ExecutorInfo
from scheduler_svc.core.request import FinishReason, Outcome, Request, SequenceUpdate
from scheduler_svc.output_stream import OutputSink

INFO = ExecutorInfo(
    epoch=b"scripted-loop-01",
    model="tiny",
    vocab_size=266,
    max_model_len=64,
    block_size=16,
    num_blocks=8,
    max_sequences=4,
    max_step_tokens=64,
)


class ScriptedLoop:
    """Answers with `script`, then as `ending` says: an error, or nothing at all where it is None.

    A stop token, `max_tokens` or a text stop end an answer sooner, as in the core.
    """

    def __init__(self, script: Sequence[int], ending: FinishReason | CitybusError | None = FinishReason.LENGTH) -> None:
        self.model: ExecutorInfo | None = INFO
        self.refusal: CitybusError | None = None
        self.requests: list[Request] = []
        self.cancelled: list[int] = []
        self.sinks: dict[int, OutputSink] = {}
        self._script = script
        self._ending = ending
        self._ids = itertools.count(1)
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def info(self) -> ExecutorInfo | None:
        return self.model

    def next_sequence_ids(self, count: int) -> list[int]:
        return [next(self._ids) for _ in range(count)]

    def submit(self, request: Request, sinks: Sequence[OutputSink]) -> None:
        (sink,) = sinks
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        self.sinks[request.sequence_id] = sink
        self._tasks[request.sequence_id] = asyncio.create_task(self._answer(request, sink))

    def cancel(self, sequence_id: int) -> None:
        """As in the core: only what is live can be cancelled, and it then has its outcome at once."""
        sink = self.sinks.pop(sequence_id, None)
        if sink is not None:
            self._tasks[sequence_id].cancel()
            self.cancelled.append(sequence_id)
            sink.push(SequenceUpdate(sequence_id, 0, (), _outcome(FinishReason.CANCELLED, 0)))

    async def _answer(self, request: Request, sink: OutputSink) -> None:
        script = self._script[: request.max_tokens]
        for index, token in enumerate(script):
            await asyncio.sleep(0)
            count, outcome = index + 1, None
            if token in request.stop_token_ids:
                outcome = replace(_outcome(FinishReason.STOP, count), stop_token_id=token)
            elif count == request.max_tokens:
                outcome = _outcome(FinishReason.LENGTH, count)
            stop = sink.push(SequenceUpdate(request.sequence_id, index, (token,), outcome))
            if stop is not None:
                outcome = _outcome(FinishReason.STOP, stop.num_tokens)
                sink.push(SequenceUpdate(request.sequence_id, count, (), outcome))
            if outcome is not None:
                self.sinks.pop(request.sequence_id)
                return
        if isinstance(self._ending, CitybusError):
            self.sinks.pop(request.sequence_id).fail(self._ending)
        elif self._ending is not None:
            outcome = _outcome(self._ending, len(script))
            self.sinks.pop(request.sequence_id).push(SequenceUpdate(request.sequence_id, len(script), (), outcome))


def _outcome(reason: FinishReason, num_output_tokens: int) -> Outcome:
    return Outcome(
        reason=reason,
        num_prompt_tokens=3,
        num_output_tokens=num_output_tokens,
        num_cached_tokens=2,
        num_preemptions=0,
        queued_s=0.25,
        first_token_s=0.5 if num_output_tokens else None,
        total_s=1.5,
    )
