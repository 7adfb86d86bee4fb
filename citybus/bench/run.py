"""One benchmark run: a load against a server, with what the client measured and what the server said."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from citybus.async_client import AsyncClient
from citybus.bench.load import Record, run_load
from citybus.bench.measures import Objectives, Summary, steady_window, summarise, unsteady
from citybus.bench.prompts import prompts
from citybus.bench.saturation import ClientLoad, Limits
from citybus.bench.server import Pool, Reading, ServerSummary, observing, summary_of
from citybus.bench.workload import Call
from citybus.messages import Model
from citybus.tls import Tls


@dataclass(frozen=True, slots=True)
class Server:
    """Which server, and how to connect. `admin_address` None means that it is not read."""

    address: str
    admin_address: str | None = None
    tls: Tls | None = None
    api_key: str | None = field(default=None, repr=False)

    def client(self) -> AsyncClient:
        """One that does not reconnect, so that what breaks counts as failed. Raises `ValueError`."""
        return AsyncClient(self.address, reconnect=None, api_key=self.api_key, tls=self.tls)


@dataclass(frozen=True, slots=True)
class Settings:
    """Against which server, and how it is measured.

    `warm_up` and `cool_down` are the shares of the sending time that do not count.
    """

    server: Server
    seed: int = 0
    objectives: Objectives = field(default_factory=Objectives)
    warm_up: float = 0.1
    cool_down: float = 0.1
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Target:
    """The model served, and the pool where the server was read."""

    model: Model
    pool: Pool | None

    @property
    def max_tokens(self) -> int:
        """Most tokens of prompt and reply that it takes."""
        longest = self.model.max_model_len
        return longest if self.pool is None else min(longest, self.pool.num_tokens)


@dataclass(frozen=True, slots=True)
class Run:
    """The result. `faults` say why it is not valid, `cautions` why it may mislead; empty where there is no reason."""

    label: str
    model: str
    summary: Summary
    client: ClientLoad
    server: ServerSummary | None
    faults: tuple[str, ...]
    cautions: tuple[str, ...]
    records: tuple[Record, ...] = field(repr=False)
    readings: tuple[Reading, ...] = field(repr=False)


async def find_target(server: Server) -> Target:
    """What is served. Raises `CitybusError`, and `ValueError` for files or a key of no use."""
    async with server.client() as client:
        model = (await client.models())[0]
    if server.admin_address is None:
        return Target(model, None)
    async with observing(server.admin_address, server.tls) as observer:
        return Target(model, await observer.pool())


async def run(
    settings: Settings,
    calls: Sequence[Call],
    label: str,
    *,
    on_record: Callable[[Record], None] = lambda record: None,
) -> Run:
    """Send the calls and measure. The server's prefix cache has nothing of them at the start.

    Raises `CitybusError` where there is no server at the beginning, and `Failure` where it is busy.
    """
    server = settings.server
    async with server.client() as client:
        model = (await client.models())[0]
        made = prompts(calls, model.vocab_size, settings.seed)
        readings: tuple[Reading, ...] = ()
        salt = secrets.token_hex(8)
        if server.admin_address is None:
            result = await run_load(client, calls, made, salt, on_record=on_record)
        else:
            async with observing(server.admin_address, server.tls) as observer:
                await observer.wait_idle()
                result = await run_load(client, calls, made, salt, on_start=observer.start, on_record=on_record)
                readings = tuple(observer.readings)
    window = steady_window(result.records, settings.warm_up, settings.cool_down)
    summary = summarise(result.records, window, settings.objectives)
    caution = unsteady(summary, result.records)
    median = summary.e2e_s.p50 if summary.e2e_s else 0.0
    return Run(
        label=label,
        model=model.name,
        summary=summary,
        client=result.client,
        server=summary_of(readings, window),
        faults=tuple(result.client.faults(settings.limits, median)),
        cautions=() if caution is None else (caution,),
        records=result.records,
        readings=readings,
    )
