"""`citybus serve`: the executor and the scheduler as two child processes, and a first answer as proof."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from citybus.async_client import AsyncClient
from citybus.cli.addresses import add_addresses, check_free
from citybus.cli.model import add_models_dir, store_of
from citybus.cli.options import failures, positive
from citybus.cli.output import describe, drop_output, write_answer
from citybus.cli.tls import tls_of_environment
from citybus.connection import ADMIN_TOKEN_VARIABLE, API_KEY_VARIABLE, DEFAULT_ADDRESS
from citybus.errors import Exhausted, InvalidRequest, Unauthenticated
from citybus.failure import Failure
from citybus.models.store import DEFAULT_ALIAS
from citybus.requests import RequestOptions
from citybus.supervisor.check import check
from citybus.supervisor.child import Service
from citybus.supervisor.control import control_path, controlled, state_folder
from citybus.supervisor.keeper import NotStarted
from citybus.supervisor.shared_token import shared_token
from citybus.supervisor.supervisor import Supervisor

PROMPT = "What is the capital of France?"
NEXT_PROMPT = "What is gravity?"

_PASSED_ON = {
    "executor": ("dtype", "kv_cache_memory", "num_threads", "max_sequences"),
    "scheduler": (
        "policy",
        "policy_folder",
        "speculative_tokens",
        "admin_token_file",
        "keys_file",
        "limits_file",
        "drain_grace",
    ),
}
_EXECUTOR_GRACE_S = 5.0  # it is told to end when the scheduler has ended, and nobody waits for it any more
_MARGIN_S = 5.0
_NEVER_SERVES = ("--check", "--help", "-h")
_FENCED = 3  # how a scheduler ends whose executor another one has taken over
_FENCED_HELP = "a restart would take it back; stop the one of the two that is not wanted, then serve again"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add(
        "--model",
        default=DEFAULT_ALIAS,
        metavar="NAME|PATH|default",
        help="a model of 'citybus model list', or a folder in Hugging Face layout, written with a slash (default: "
        f"{DEFAULT_ALIAS})",
    )
    add_models_dir(parser)
    add_addresses(parser)
    add(
        "--dtype",
        choices=("auto", "bfloat16", "float32"),
        help="number format of the weights (default: the executor's)",
    )
    add("--kv-cache-memory", metavar="MIB", help="memory for keys and values, in MiB (default: the executor's)")
    add("--num-threads", metavar="N", help="threads that compute (default: the executor's)")
    add("--max-sequences", metavar="N", help="most sequences in a step (default: the executor's)")
    add("--policy", help="scheduling policy, as 'citybus policy list' names them (default: the scheduler's)")
    add("--policy-folder", metavar="FOLDER", help="folder with policies of your own (default: none)")
    add("--speculative-tokens", metavar="N", help="most tokens to guess in a step (default: the scheduler's)")
    add("--admin-token-file", metavar="FILE", help="token of operators, made where there is none (default: none)")
    add("--keys-file", metavar="FILE", help="API keys of tenants, made by 'citybus keys new' (default: none is needed)")
    add("--limits-file", metavar="FILE", help="limits of tenants, as docs/security.md says (default: none)")
    add("--insecure-bind", action="store_true", help="listen beyond this machine without API keys")
    add("--journal", metavar="FILE|none", help=_JOURNAL_HELP)
    add("--drain-grace", metavar="SECONDS", type=float, default=30.0, help=_GRACE_HELP)
    add("--start-timeout", metavar="SECONDS", type=positive, default=600.0, help=_START_HELP)
    for service in ("executor", "scheduler"):
        add(f"--{service}-arg", metavar="ARG", action="append", default=[], help=_arg_help(service))
    add("--verbose", action="store_true", help="show the whole logs of both, not only warnings and errors")
    parser.set_defaults(run=run)


_GRACE_HELP = "how long requests may go on after Ctrl-C or SIGTERM, in seconds (default: 30)"
_JOURNAL_HELP = (
    "file that keeps accepted requests over a restart of the scheduler (default: scheduler-PORT.journal in citybus/ of"
    " the user's state directory)"
)
_START_HELP = "how long each of them may take to become healthy, in seconds (default: 600)"


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    if os.environ.get(ADMIN_TOKEN_VARIABLE) and args.admin_token_file is None:
        raise Failure(f"{ADMIN_TOKEN_VARIABLE} is for commands: name a file with --admin-token-file, or unset it")
    model = store_of(args).find(args.model)
    check_free(args)
    asyncio.run(_serve(args, model))
    return 0


async def _serve(args: argparse.Namespace, model: Path) -> None:
    services = (_executor(args, model), _scheduler(args, model))
    supervisor = Supervisor(services, _say, start_timeout_s=args.start_timeout, verbose=args.verbose)
    control = controlled(control_path(args.listen), lambda tell: supervisor.replace("scheduler", tell), _say)
    with shared_token(_token_path(args)):
        _say(f"starting the executor and the scheduler for {model.name}")
        async with control:
            try:
                await supervisor.run(lambda: _prove(args.listen))
            except NotStarted:
                await check(services)  # asked before the start, it would make every start slower by a second
                raise
    _say("ended")


def _executor(args: argparse.Namespace, model: Path) -> Service:
    listen, token = f"--listen={args.executor_listen}", f"--token-file={_token_path(args)}"
    fixed = (f"--model={model}", listen, token, f"--drain-grace={_EXECUTOR_GRACE_S}")
    return Service(
        "executor",
        ("executor_svc", *fixed, *_passed_on("executor", args), *_added("executor", args, fixed)),
        _reachable(args.executor_listen),
        _EXECUTOR_GRACE_S + _MARGIN_S,
    )


def _scheduler(args: argparse.Namespace, model: Path) -> Service:
    addresses = (f"--listen={args.listen}", f"--admin-listen={args.admin_listen}")
    journal = args.journal or state_folder() / f"scheduler-{args.listen.rpartition(':')[2]}.journal"
    executor = (f"--executor={_reachable(args.executor_listen)}", f"--executor-token-file={_token_path(args)}")
    guard = ("--insecure-bind",) if args.insecure_bind else ()
    fixed = (f"--model={model}", *addresses, *executor, *guard, f"--journal={journal}")
    return Service(
        "scheduler",
        ("scheduler_svc", *fixed, *_passed_on("scheduler", args), *_added("scheduler", args, fixed)),
        _reachable(args.listen),
        args.drain_grace + _MARGIN_S,
        final_codes={_FENCED: _FENCED_HELP},
        can_stand_by=str(journal).lower() != "none",
        tls=tls_of_environment(),
    )


def _token_path(args: argparse.Namespace) -> Path:
    """Where the two find the token that they share."""
    return state_folder() / f"executor-{args.executor_listen.rpartition(':')[2]}.token"


def _passed_on(service: str, args: argparse.Namespace) -> list[str]:
    given = {name: getattr(args, name) for name in _PASSED_ON[service]}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]


def _added(service: str, args: argparse.Namespace, fixed: Sequence[str]) -> list[str]:
    """Its options that have no flag here. Raises `Failure` for one that is not the user's to give."""
    added: list[str] = getattr(args, f"{service}_arg")
    ours = {each.partition("=")[0] for each in fixed}.union(_NEVER_SERVES)
    for flag in (each.partition("=")[0] for each in added):
        if flag in ours:
            raise Failure(f"--{service}-arg={flag}: leave it out; 'citybus serve --help' has what can be set instead")
    return added


async def _prove(listen: str) -> None:
    """Have the model answer a question, unless limits or a missing API key refuse it; say how to send the next."""
    address = _reachable(listen)
    with failures(address):
        try:
            await _answer(address)
        except Unauthenticated:
            _say(f"clients need an API key: make one with 'citybus keys new', and set {API_KEY_VARIABLE} to it")
        except (InvalidRequest, Exhausted) as error:
            _say(f"the server refused this demonstration, and goes on ({error.code.name}: {error})\n")
    elsewhere = "" if address == DEFAULT_ADDRESS else f" --address {address}"
    _say(f"serving on {listen} until Ctrl-C; send another prompt from a second terminal:")
    _say(f'  {_this_command()} generate "{NEXT_PROMPT}" --temperature 0{elsewhere}')


async def _answer(address: str) -> None:
    """A question and its answer, as it is made."""
    async with AsyncClient(address, tls=tls_of_environment()) as client:
        chat = (await client.models())[0].has_chat_template
        options: RequestOptions = {"messages": [{"role": "user", "content": PROMPT}]} if chat else {}
        options |= {"temperature": 0.0, "max_tokens": 64}
        _say(f"\n> {PROMPT}")
        async with client.generate(None if chat else PROMPT, **options) as stream:
            async for delta in stream:
                with _unread():
                    write_answer(delta.text)
            _say(f"\n({describe(stream.finish)})\n")


def _say(line: str) -> None:
    with _unread():
        print(line, flush=True)


@contextlib.contextmanager
def _unread() -> Iterator[None]:
    """A server goes on where nobody reads what it says."""
    try:
        yield
    except OSError:
        drop_output()


def _this_command() -> str:
    """How the user calls this program."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py":
        return f"{sys.executable} -m citybus"
    return script.name if shutil.which(script.name) == str(script) else str(script)


def _reachable(listen: str) -> str:
    """The address under which this machine reaches a server that listens on `listen`."""
    host, _, port = listen.rpartition(":")
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host) }:{port}"


def _arg_help(service: str) -> str:
    return f"any other option of the {service}, as --{service}-arg=--flag=value; may be repeated (default: none)"
