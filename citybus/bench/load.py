"""The load: requests sent at their times, whatever happens to those before (open loop)."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from citybus.async_client import AsyncClient
from citybus.bench.saturation import ClientLoad, LagWatch
from citybus.bench.workload import Call
from citybus.errors import CitybusError
from citybus.messages import Finish
from citybus.requests import RequestOptions

LEAD_S = 0.2
"""Seconds from the end of the preparations to the first request."""

SHORT = "SHORT_ANSWER"
"""Failure of an answer that came to an end before its length."""


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a call. Times are in seconds of the client's clock, from the time of the first call.

    `planned` and `sent` say when it was to be sent and was; `token_times` when each token of the answer came (those
    of one message came at once) and `ended` when the stream did. `queued_s` is how long it waited for its first step
    on the server. `failure` is a status code, SHORT_ANSWER, or None.
    """

    call: Call
    planned: float
    sent: float
    token_times: tuple[float, ...]
    ended: float
    queued_s: float = 0.0
    cached_tokens: int = 0
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The records in the order of the calls, and what the client itself did."""

    records: tuple[Record, ...]
    client: ClientLoad


Clock = Callable[[], float]
"""Seconds since the time of the first call; negative before it."""


async def run_load(
    client: AsyncClient,
    calls: Sequence[Call],
    prompts: Sequence[array[int]],
    salt: str,
    *,
    on_start: Callable[[Clock], None] = lambda clock: None,
    on_record: Callable[[Record], None] = lambda record: None,
) -> LoadResult:
    """Send each call at its time, with its prompt, and wait for all answers.

    Answers are greedy and of exact length. Cached prefixes are shared within `salt` only. `client` should not
    reconnect, so that what breaks counts as failed. `on_start` gets the clock, `on_record` each record as it is made.
    """
    loop = asyncio.get_running_loop()
    start = loop.time() + LEAD_S

    def clock() -> float:
        return loop.time() - start

    on_start(clock)
    with LagWatch() as watch:
        async with asyncio.TaskGroup() as group:
            tasks: list[tuple[int, asyncio.Task[Record]]] = []
            for index in sorted(range(len(calls)), key=lambda index: calls[index].at):
                await asyncio.sleep(max(0.0, calls[index].at - clock()))
                asking = _ask(client, calls[index], prompts[index], salt, clock, on_record)
                tasks.append((index, group.create_task(asking)))
    records = tuple(task.result() for _, task in sorted(tasks, key=lambda entry: entry[0]))
    return LoadResult(records, watch.load([record.sent - record.planned for record in records]))


async def _ask(
    client: AsyncClient,
    call: Call,
    prompt: array[int],
    salt: str,
    clock: Clock,
    on_record: Callable[[Record], None],
) -> Record:
    options: RequestOptions = {"token_ids": prompt, "max_tokens": call.num_output, "temperature": 0.0}
    options |= {"ignore_eos": True, "cache_salt": salt, "tenant": call.tenant}
    times: list[float] = []
    finish: Finish | None = None
    failure: str | None = None
    sent = clock()
    try:
        async with client.generate(**options) as stream:
            async for delta in stream:
                times += [clock()] * len(delta.token_ids)
            finish = stream.finish
    except CitybusError as error:
        failure = error.code.name
    if failure is None and len(times) != call.num_output:
        failure = SHORT
    queued_s = finish.timings.queued_ms / 1000 if finish else 0.0
    cached = finish.usage.cached_tokens if finish else 0
    record = Record(call, call.at, sent, tuple(times), clock(), queued_s, cached, failure)
    on_record(record)
    return record
