"""`citybus chat`: a conversation, turn by turn."""

from __future__ import annotations

import argparse
import contextlib
import sys

from citybus.cli.options import add_connection, add_request_options, connect, failures, request_options
from citybus.cli.output import describe, write_answer
from citybus.client import Client
from citybus.failure import Failure
from citybus.messages import Finish
from citybus.requests import ChatMessage, RequestOptions

HELP = "/reset starts anew, /stats says what the last answer took, /exit (or Ctrl-D) leaves; Ctrl-C stops an answer"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--system", metavar="TEXT", help="system message before the first turn (default: the model's)")
    add_connection(parser)
    add_request_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read a line, print the answer, until the end of the input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives input() its line editing and history
    with failures(args.address):
        connected = connect(args)
    with connected as client:
        with failures(args.address):
            if not any(model.has_chat_template for model in client.models()):
                raise Failure("the served model has no chat template: use 'citybus generate --raw'")
        print(HELP, file=sys.stderr)
        _Conversation(client, args.address, args.system, request_options(args)).hold()
    return 0


class _Conversation:
    """The turns so far, all of which the server sees again with each new one (its prefix cache holds them)."""

    def __init__(self, client: Client, address: str, system: str | None, options: RequestOptions) -> None:
        self._client = client
        self._address = address
        self._options = options
        self._opening = [ChatMessage(role="system", content=system)] if system is not None else []
        self._turns = list(self._opening)
        self._last: Finish | None = None

    def hold(self) -> None:
        """Until /exit or the end of the input."""
        while True:
            try:
                line = input("> " if sys.stdin.isatty() else "").strip()
            except (EOFError, KeyboardInterrupt):
                print(file=sys.stderr)
                return
            if line == "/exit":
                return
            if line.startswith("/"):
                self._obey(line)
            elif line:
                self._say(line)

    def _obey(self, command: str) -> None:
        if command == "/reset":
            self._turns = list(self._opening)
        elif command == "/stats" and self._last is not None:
            print(describe(self._last), file=sys.stderr)
        else:
            print(HELP, file=sys.stderr)

    def _say(self, line: str) -> None:
        """One turn. A turn that failed is forgotten; of one that was stopped, what came stays."""
        turns = [*self._turns, ChatMessage(role="user", content=line)]
        options: RequestOptions = {**self._options, "messages": turns}
        parts: list[str] = []
        try:
            with failures(self._address), self._client.generate(**options) as stream:
                for delta in stream:
                    parts.append(delta.text)
                    write_answer(delta.text)
                self._last = stream.finish
        except Failure as failure:
            print(f"citybus: {failure}", file=sys.stderr)
            return
        except KeyboardInterrupt:
            pass
        write_answer("\n")
        self._turns = [*turns, ChatMessage(role="assistant", content="".join(parts))]
