"""`citybus generate`: one prompt, one answer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from citybus.cli.options import (
    add_connection,
    add_output_options,
    add_request_options,
    connect,
    failures,
    request_options,
)
from citybus.cli.output import describe, write_answer
from citybus.client import Client
from citybus.failure import Failure
from citybus.messages import Delta, Finish, FinishReason, completions_of
from citybus.requests import ChatMessage
from citybus.stream import Stream

_ALL_THE_SAME = "[all answers are the same at --temperature 0: give a higher one, or --beam-width, for others]"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("prompt", metavar="PROMPT", help="what to answer; - reads it from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as plain text, without chat template")
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt (default: the template's)")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each message of the server")
    parser.add_argument("--stats", action="store_true", help="say on stderr how many tokens it took, and how long")
    add_connection(parser)
    add_request_options(parser)
    add_output_options(parser)
    several = "answers to give, each with a seed of its own; at most 64 (default: 1)"
    group = parser.add_argument_group("answers", argument_default=argparse.SUPPRESS)
    group.add_argument("--n", type=int, metavar="N", help=several)
    group.add_argument("--best-of", type=int, metavar="N", help="make so many, give the --n best (default: --n)")
    group.add_argument("--beam-width", type=int, metavar="N", help="beams of a search, 2 to 16 (default: draw instead)")
    group.add_argument("--length-penalty", type=float, metavar="P", help="over 0 favours long beams (default: 1)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the answer as it is made."""
    if not args.json and (hasattr(args, "logprobs") or hasattr(args, "prompt_logprobs")):
        raise Failure("--logprobs and --prompt-logprobs are told with --json only: add it, or leave them out")
    prompt = _read_stdin() if args.prompt == "-" else args.prompt
    if getattr(args, "n", 1) > 1 and getattr(args, "temperature", None) == 0 and not hasattr(args, "beam_width"):
        print(_ALL_THE_SAME, file=sys.stderr)
    with failures(args.address), connect(args) as client, _start(client, prompt, args) as stream:
        (_print_json if args.json else _print_text)(stream, getattr(args, "n", 1))
        _tell_ends(stream.finishes, stats=args.stats, known=args.json)
    return 0


def _start(client: Client, prompt: str, args: argparse.Namespace) -> Stream:
    """Send `prompt` as a message where the model has a chat template, else as it is."""
    options = request_options(args)
    chat = not args.raw and any(
        model.has_chat_template for model in client.models() if model.name == options.get("model", model.name)
    )
    if not chat:
        if args.system is not None:
            raise Failure("--system needs a model with a chat template, and no --raw")
        return client.generate(prompt, **options)
    system = [ChatMessage(role="system", content=args.system)] if args.system is not None else []
    options["messages"] = [*system, ChatMessage(role="user", content=prompt)]
    return client.generate(**options)


def _print_text(stream: Stream, num_samples: int) -> None:
    """One answer as it is made; several one after the other, once all are there."""
    if num_samples == 1:
        for delta in stream:
            write_answer(delta.prompt.text + delta.text if delta.prompt is not None else delta.text)
        write_answer("\n")
    else:
        deltas = list(stream)
        for sample, completion in enumerate(completions_of(deltas, stream.finishes, None)):
            write_answer(f"[{sample}] {completion.text}\n")


def _tell_ends(finishes: Sequence[Finish], *, stats: bool, known: bool) -> None:
    """How each answer ended, on stderr: all about it, or only what did not end it by itself and is not `known`."""
    for sample, finish in enumerate(finishes):
        number = f"[{sample}] " if len(finishes) > 1 else ""
        if stats:
            print(f"{number}{describe(finish)}", file=sys.stderr)
        elif finish.reason is not FinishReason.STOP and not known:
            print(f"{number}[ended by {finish.reason}]", file=sys.stderr)


def _print_json(stream: Stream, num_samples: int) -> None:
    for delta in stream:
        print(json.dumps(_told(delta)), flush=True)
    finishes = [asdict(finish) for finish in stream.finishes]
    end = {"finish": finishes[0]} if num_samples == 1 else {"finishes": finishes}
    print(json.dumps({"request_id": stream.request_id(), **end}), flush=True)


def _told(delta: Delta) -> dict[str, object]:
    """A part of an answer, without what was not asked for."""
    unasked = {"logprobs": not delta.logprobs, "prompt": delta.prompt is None}
    return {name: value for name, value in asdict(delta).items() if not unasked.get(name)}


def _read_stdin() -> str:
    """Standard input without the line break at its end."""
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise Failure(f"standard input is not UTF-8: {error}") from error
