"""Options that several commands share, and what they mean to the client."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from citybus.cli.tls import add_tls, insecure, tls_of
from citybus.client import Client
from citybus.connection import API_KEY_VARIABLE, DEFAULT_ADDRESS
from citybus.errors import CitybusError, Disconnected, Insecure, Unreachable
from citybus.failure import Failure
from citybus.requests import RequestOptions

_REQUEST_OPTIONS = tuple(name for name in RequestOptions.__annotations__ if name not in ("messages", "token_ids"))

_ALLOW_HELP = "token that may be drawn; may be repeated (default: all)"
_BAN_HELP = "token that is never drawn; may be repeated (default: none)"
_BAD_WORD_HELP = "text that is not to come; may be repeated (default: none)"
_STOP_TOKEN_HELP = "token id that ends the answer; may be repeated (default: the model's own)"


def add_address(parser: argparse.ArgumentParser) -> None:
    """The option that says where the scheduler listens."""
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        default=os.environ.get("CITYBUS_ADDRESS", DEFAULT_ADDRESS),
        help=f"where the scheduler listens (default: CITYBUS_ADDRESS, or {DEFAULT_ADDRESS})",
    )


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The address, how to be sure of who is there, and how to show who one is."""
    add_address(parser)
    add_api_key(parser)
    add_tls(parser)


def add_api_key(parser: argparse.ArgumentParser) -> None:
    """How to show who one is."""
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        type=Path,
        help=f"file with the API key to send (default: the variable {API_KEY_VARIABLE}, or no key)",
    )


def connect(args: argparse.Namespace) -> Client:
    """A client of the server that the options name. Raises `Failure`, and `ValueError` for a key or file of no use."""
    return Client(args.address, api_key=api_key_of(args), tls=tls_of(args))


def api_key_of(args: argparse.Namespace) -> str | None:
    """The key in the file that the options name, if they do. Raises `Failure`."""
    path: Path | None = args.api_key_file
    if path is None:
        return None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"the API key cannot be read from {path}: {error}") from error
    if not key:
        raise Failure(f"{path} must hold one line, the API key")
    return key


def positive(text: str) -> float:
    """A number over 0, as an option."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("expected a number over 0")
    return value


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """An option for everything that a request can say; what is not given, the server decides."""
    group = parser.add_argument_group("request", argument_default=argparse.SUPPRESS)
    add = group.add_argument
    add("--max-tokens", type=int, metavar="N", help="most tokens to generate (default: up to the model's context)")
    add("--temperature", type=float, metavar="T", help="0 is greedy, at most 100 (default: 1)")
    add("--top-p", type=float, metavar="P", help="keep the likeliest tokens up to this probability (default: 1, off)")
    add("--top-k", type=int, metavar="N", help="keep this many likeliest tokens (default: 0, off)")
    add("--min-p", type=float, metavar="P", help="drop tokens below this share of the likeliest (default: 0, off)")
    add("--seed", type=int, metavar="N", help="same seed, same tokens (default: a fresh one)")
    add("--repetition-penalty", type=float, metavar="R", help="over 1: nothing twice, if it can be (default: 1, off)")
    add("--presence-penalty", type=float, metavar="P", help="taken from tokens that the answer has (default: 0)")
    add("--frequency-penalty", type=float, metavar="F", help="taken for each time it has them (default: 0)")
    add("--logit-bias", action=_Bias, metavar="ID=B", help="added to a token's logit; may be repeated (default: none)")
    add("--allow-token-id", dest="allowed_token_ids", action="append", type=int, metavar="ID", help=_ALLOW_HELP)
    add("--ban-token-id", dest="banned_token_ids", action="append", type=int, metavar="ID", help=_BAN_HELP)
    add("--bad-word", dest="bad_words", action="append", metavar="TEXT", help=_BAD_WORD_HELP)
    add("--stop", action="append", metavar="TEXT", help="text that ends the answer; may be repeated (default: none)")
    add("--stop-token-id", dest="stop_token_ids", action="append", type=int, metavar="ID", help=_STOP_TOKEN_HELP)
    add("--ignore-eos", action="store_true", help="go on past the model's own end tokens (default: no)")
    add("--min-tokens", type=int, metavar="N", help="do not end before so many tokens (default: 0)")
    add("--include-stop", action="store_true", help="show what stopped the answer (default: no)")
    add("--keep-special-tokens", dest="skip_special_tokens", action="store_false", help="show them (default: no)")
    _add_forms(parser)
    add("--priority", type=int, metavar="N", help='-1000 to 1000, under the "priority" policy (default: 0)')
    add("--tenant", metavar="NAME", help='who is billed under fair-share policies (default: "")')
    add("--time-limit-ms", type=int, metavar="MS", help="most milliseconds in all (default: the server's limit)")
    add("--cache-salt", metavar="TEXT", help="share cached prefixes only under this salt (default: the common space)")
    add("--request-id", metavar="ID", help="name of the request (default: one that the server makes)")
    add("--model", metavar="NAME", help="name of the model (default: the served one)")


def _add_forms(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("form of the answer, one at most", argument_default=argparse.SUPPRESS)
    add = group.add_mutually_exclusive_group().add_argument
    add(
        "--json-schema",
        type=_content,
        metavar="FILE",
        help="JSON that the schema in FILE describes (default: any text)",
    )
    add("--json-object", action="store_true", help="a JSON object, whichever")
    add("--regex", metavar="PATTERN", help="a text that matches PATTERN as a whole (default: any text)")
    add("--choice", action="append", metavar="TEXT", help="one of several texts, to be repeated (default: any text)")
    add("--grammar", type=_content, metavar="FILE", help="a text of FILE's grammar, in Lark's notation (default: any)")


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise argparse.ArgumentTypeError(f"cannot read {path}: {reason}") from error


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Options for what is told besides the answer."""
    add = parser.add_argument_group("output", argument_default=argparse.SUPPRESS).add_argument
    add(
        "--logprobs",
        type=int,
        metavar="N",
        help="with --json: logprobs of tokens, and of the N likeliest (default: no)",
    )
    add("--prompt-logprobs", type=int, metavar="N", help="with --json: the same of the prompt (default: no)")
    add("--echo", action="store_true", help="show the prompt too (default: no)")


class _Bias(argparse.Action):
    """Gathers ID=B into a mapping."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        token_id, _, bias = str(values).partition("=")
        try:
            pair = {int(token_id): float(bias)}
        except ValueError:
            raise argparse.ArgumentError(self, f"expected ID=B, such as 1234=-5, got {values!r}") from None
        setattr(namespace, self.dest, {**getattr(namespace, self.dest, {}), **pair})


def request_options(args: argparse.Namespace) -> RequestOptions:
    """The options that were given."""
    given: RequestOptions = {name: getattr(args, name) for name in _REQUEST_OPTIONS if hasattr(args, name)}  # type: ignore[assignment]
    return given


@contextmanager
def failures(address: str) -> Iterator[None]:
    """Turns the client's errors into a `Failure` that says what to do."""
    try:
        yield
    except Unreachable as error:
        raise Failure(f"{error}; start a server with 'citybus serve', or name another with --address") from error
    except Insecure as error:
        raise insecure(error) from error
    except Disconnected as error:
        raise Failure(f"{error.code.name}: {error}") from error
    except CitybusError as error:
        raise Failure(f"the server at {address} says {error.code.name}: {error}") from error
    except (TypeError, ValueError) as error:
        raise Failure(str(error)) from error
