"""`python -m scheduler_svc`: the one place that names concrete classes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from citybus.admin.v1 import admin_pb2_grpc
from citybus.v1 import generation_pb2_grpc
from common import address, config, log
from common.errors import InvalidRequest, NotFound, StartupError
from common.grpc_server import GrpcServer
from common.metrics import SchedulerMetrics, serve_metrics
from common.step import StepPlan
from scheduler_svc.acceptance import Acceptance
from scheduler_svc.admin import AdminServicer
from scheduler_svc.alarm import Alarm
from scheduler_svc.chat_template import ChatTemplate
from scheduler_svc.config import Config
from scheduler_svc.core.guard import GuardedPolicy, PolicyChange
from scheduler_svc.doors import admin_server, check_addresses, check_doors, client_server, executor_client, read_rules
from scheduler_svc.events import EventBus, ExecutorConnected, ExecutorLost, Preempted
from scheduler_svc.executor_client import ExecutorClient, Fenced
from scheduler_svc.file_journal import open_journal
from scheduler_svc.form_check import FormCheck
from scheduler_svc.frontend import GenerationServicer
from scheduler_svc.garbage import collect_seldom
from scheduler_svc.health import Health
from scheduler_svc.journal import Journal, NoJournal
from scheduler_svc.loop import Recover, SchedulerLoop
from scheduler_svc.message_size import largest_message
from scheduler_svc.model_files import read_model_files
from scheduler_svc.plan_log import plan_recorder
from scheduler_svc.policy_desk import PolicyDesk, announce
from scheduler_svc.policy_memory import PolicyMemory
from scheduler_svc.policy_shelf import PolicyShelf
from scheduler_svc.prompts import PromptEncoder
from scheduler_svc.spent_journals import remove_spent
from scheduler_svc.succession import announce_hand_over
from scheduler_svc.tokenizer import Tokenizer


async def check(settings: Config) -> None:
    """Whether its options are good; the model's files are read at the start. Raises `StartupError`."""
    await _check(settings, PolicyShelf(settings.policy_folder))
    executor_client(settings)
    check_addresses(settings)


async def serve(settings: Config) -> None:
    """Run until a signal has drained the service. Raises `StartupError`, and `Fenced` where it was replaced."""
    files = read_model_files(settings.model)
    template = ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template else None
    tokenizer = Tokenizer(files)
    encoder = PromptEncoder(tokenizer, template)
    largest = settings.max_request_bytes or largest_message(files.max_model_len, tokenizer.longest_token)
    shelf = PolicyShelf(settings.policy_folder)
    await _check(settings, shelf)
    client = executor_client(settings)
    if settings.journal is not None:
        await asyncio.to_thread(remove_spent, settings.journal)
    journal = await open_journal(settings.journal) if settings.journal is not None else NoJournal()
    forms = FormCheck(settings.model)
    collect_seldom()
    try:
        await _serve(settings, files.eos_token_ids, largest, encoder, forms, client, journal, shelf)
    finally:
        encoder.close()
        await forms.close()
        await journal.close()


async def _serve(
    settings: Config,
    eos_token_ids: frozenset[int],
    max_request_bytes: int,
    encoder: PromptEncoder,
    forms: FormCheck,
    client: ExecutorClient,
    journal: Journal,
    shelf: PolicyShelf,
) -> None:
    registry, events = CollectorRegistry(), EventBus()
    metrics = SchedulerMetrics(registry)
    if not shelf.is_current():  # this was a standby for long
        await _load(shelf, settings.policy_folder)
    time_limit = Alarm(settings.policy_time_limit)
    guarded = _guarded_policy(settings, shelf, time_limit, announce(metrics, events))
    metrics.set_policy(guarded.name)
    memory = PolicyMemory(guarded, journal, settings.policy)
    memory.restore(shelf)
    rules, admin = read_rules(settings), admin_server(settings, os.environ)
    server = client_server(settings, rules, metrics, max_request_bytes)
    with contextlib.ExitStack() as stack:
        loop = SchedulerLoop(
            client,
            guarded,
            settings,
            metrics,
            journal,
            on_serving=lambda serving: _on_serving(serving, health, events),
            on_hand_over=announce_hand_over(metrics, events),
            on_plan=_plan_watcher(plan_recorder(settings.plan_log, stack), events),
        )
        health = Health(server, loop, journal)
        generation = GenerationServicer(
            loop,
            encoder,
            forms,
            _acceptance(settings, encoder, eos_token_ids, metrics),
            journal,
            metrics,
            max_live_requests=settings.max_queued_requests,
            limits_of=rules.limits_of,
            attach_grace_s=settings.attach_grace,
        )
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server.server)
        desk = PolicyDesk(guarded, shelf, memory, events, time_limit)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminServicer(loop, desk, events, on_draining=health.tell), admin.server
        )
        metrics_server = serve_metrics(registry, settings.metrics_listen)
        stack.callback(metrics_server.close)
        port, admin_port = await server.start(), await admin.start()
        await admin.set_serving(True)
        _tell_serving(settings, port, admin_port, metrics_server.port, guarded.name)
        try:
            async with memory.kept():
                await _until_signal(server, loop, generation.recover, settings.drain_grace)
        finally:
            await admin.server.stop(0)


def _tell_serving(settings: Config, port: int, admin_port: int, metrics_port: int | None, policy: str) -> None:
    structlog.get_logger().info(
        "serving",
        listen=address.with_port(settings.listen, port),
        admin_listen=address.with_port(settings.admin_listen, admin_port),
        metrics_port=metrics_port,
        policy=policy,
    )


def _acceptance(
    settings: Config, encoder: PromptEncoder, eos_token_ids: frozenset[int], metrics: SchedulerMetrics
) -> Acceptance:
    """Where tenants are known by their keys, none learns from the cache what another one has asked."""
    by_tenant = settings.keys_file is not None
    return Acceptance(encoder, eos_token_ids, metrics, settings.time_limit, time.monotonic, cache_by_tenant=by_tenant)


async def _check(settings: Config, shelf: PolicyShelf) -> None:
    """Whether it could serve: a standby must not find out when the one before it has gone. Raises `StartupError`."""
    await _load(shelf, settings.policy_folder)
    _guarded_policy(settings, shelf, Alarm(settings.policy_time_limit), lambda change: None)
    check_doors(settings, os.environ)


async def _load(shelf: PolicyShelf, folder: Path | None) -> None:
    """Read the folder; files that are refused are logged. Raises `StartupError` where there is no such folder."""
    if folder is not None:
        try:
            await shelf.reload()
        except InvalidRequest as error:
            raise StartupError(f"--policy-folder: {error}") from error


def _guarded_policy(
    settings: Config, shelf: PolicyShelf, time_limit: Alarm, on_change: Callable[[PolicyChange], None]
) -> GuardedPolicy:
    try:
        policy = shelf.make(settings.policy, {})
    except (NotFound, InvalidRequest) as error:
        raise StartupError(f"--policy: {error}") from error
    return GuardedPolicy(policy, time_limit=time_limit, starvation_s=settings.starvation_limit, on_change=on_change)


async def _on_serving(serving: bool, health: Health, events: EventBus) -> None:
    events.publish(ExecutorConnected() if serving else ExecutorLost())
    await health.tell()


def _plan_watcher(record: Callable[[StepPlan], None], events: EventBus) -> Callable[[StepPlan], None]:
    def watch(plan: StepPlan) -> None:
        record(plan)
        if plan.preempted_ids:
            events.publish(Preempted(plan.preempted_ids, plan.step))

    return watch


async def _until_signal(server: GrpcServer, loop: SchedulerLoop, recover: Recover, grace_s: float) -> None:
    """Drive the loop until a signal ends the service, or the loop ends by itself: then its error is raised.

    SIGUSR1 is the short way for a scheduler whose successor stands by: everything is left to that one, as it is.
    """
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, loop.let_go)
    driving = asyncio.create_task(loop.run(recover))
    waiting = asyncio.create_task(server.run_until_signal(loop.drain, grace_s))
    await asyncio.wait((driving, waiting), return_when=asyncio.FIRST_COMPLETED)
    if driving.done() and not waiting.done():
        await server.set_serving(False)
        await server.server.stop(1.0)
    for task in (driving, waiting):
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    with contextlib.suppress(asyncio.CancelledError):
        await driving


def main() -> int:
    """The process. Returns its exit status."""
    try:
        settings = config.load(
            Config, sys.argv[1:], os.environ, prog="python -m scheduler_svc", env_prefix="CITYBUS_SCHEDULER"
        )
        log.configure("scheduler", settings.log_level)
        structlog.get_logger().info("starting", version=importlib.metadata.version("citybus"))
        asyncio.run(check(settings) if settings.check else serve(settings))
    except StartupError as error:
        print(f"scheduler: {error}", file=sys.stderr)
        return 2
    except Fenced:
        print("scheduler: another scheduler has taken the executor over; this one ends", file=sys.stderr)
        return 3
    except KeyboardInterrupt:  # before the signals are handled: while it still starts
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
