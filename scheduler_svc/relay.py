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
        if annotations is None:
            await context.write(response_of(delta))
            continue
        if not await annotations.known(delta.indexes) and sample.error is not None:
            raise sample.error
        for part in parts_of(delta, MOST_ANNOTATED_TOKENS):
            if annotations.is_large(part.indexes):  # in a thread, so that the event loop goes on meanwhile
                await context.write(await asyncio.to_thread(response_of, part, annotations))
            else:
                await context.write(response_of(part, annotations))
