"""Sends an answer to its reader, message by message."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from scheduler_svc.responses import parts_of, response_of
from scheduler_svc.ride import Reading, Ride

MOST_ANNOTATED_TOKENS = 1024
"""Tokens in a message that has log-probabilities: it is to stay well below what gRPC's clients accept."""


async def relay(ride: Ride, stream: Reading, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Send everything that comes out of `stream`, until all answers have ended; raises the error it ends with."""
    num_left = ride.answers.num_answers
    while num_left > 0:
        delta = await stream.next()
        num_left -= delta.outcome is not None
        sample = ride.samples[delta.sample]
        annotations = sample.annotations
        # The first sample has the prompt's, whichever is told.
        prompt = ride.samples[0].annotations if delta.number == 0 else None
        if annotations is None and prompt is None:
            await context.write(response_of(delta))
            continue
        for needed, indexes in ((annotations, delta.indexes), (prompt, delta.indexes[:0])):
            if needed is not None and not await needed.known(indexes) and sample.error is not None:
                raise sample.error
        for part in parts_of(delta, MOST_ANNOTATED_TOKENS):
            if prompt is not None and prompt.is_large(part.indexes):
                # In a thread, so that the event loop goes on meanwhile.
                await context.write(await asyncio.to_thread(response_of, part, annotations, prompt))
            else:
                await context.write(response_of(part, annotations, prompt))
