"""Sends an answer to its reader, message by message."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from common.errors import CitybusError
from scheduler_svc.output_stream import OutputStream
from scheduler_svc.responses import parts_of, response_of
from scheduler_svc.rides import Ride

MOST_ANNOTATED_TOKENS = 1024
"""Tokens in a message that has log-probabilities: it is to stay well below what gRPC's clients accept."""


async def relay(ride: Ride, stream: OutputStream, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Send everything that comes out of `stream`; raises the error it ends with."""
    annotations, outcome = ride.annotations, None
    while outcome is None:
        delta = await stream.next()
        outcome = delta.outcome
        if annotations is None:
            await context.write(response_of(delta))
            continue
        if not await annotations.known(delta.indexes) and isinstance(ride.ending, CitybusError):
            raise ride.ending
        for part in parts_of(delta, MOST_ANNOTATED_TOKENS):
            if annotations.is_large(part.indexes):  # in a thread, so that the event loop goes on meanwhile
                await context.write(await asyncio.to_thread(response_of, part, annotations))
            else:
                await context.write(response_of(part, annotations))
