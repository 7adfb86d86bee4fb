"""`python -m scheduler_svc.form_worker MODEL VOCAB_SIZE`: tries grammars, in a process that may die of one.

A line of JSON comes in for each grammar, with its kind and its source, and a line goes out that says what is wrong with
it, or null. The first line out, before any came in, is about the model's tokenizer.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from common.grammar import Grammar, GrammarKind
from common.matching import GrammarError, check, compiled, token_table
from scheduler_svc.schema_keywords import UnsupportedSchema, check_schema

MAX_SECONDS = 1.0
"""Processor time that a grammar may take, followed for a while. A signal ends the process then, whatever it is at."""

MAX_BYTES = 2**30
"""Memory that the process may grow by."""

_TRIED_TOKENS = 24


def fault_of(table: LLTokenizer, grammar: Grammar) -> str | None:
    """Why an answer cannot be held to `grammar`; None where it can."""
    try:
        if grammar.kind is GrammarKind.JSON_SCHEMA:
            check_schema(grammar.source)
        if grammar.kind is GrammarKind.LARK and "%json" in grammar.source:
            return "%json is not supported in a grammar: send the schema as json_schema"
        _follow(compiled(table, grammar), table.eos_token)
    except (GrammarError, UnsupportedSchema) as error:
        return str(error)
    return None


def _follow(matcher: LLMatcher, end: int) -> None:
    """Follow an answer of tokens by chance: some grammars are taken at once and then slow at every token.

    Raises `GrammarError` where it cannot go on.
    """
    chance = random.Random(0)
    for _ in range(_TRIED_TOKENS):
        mask = matcher.compute_bitmask()
        check(matcher)
        place = chance.randrange(len(mask))
        turned = mask[place:] + mask[:place]
        rest = turned.lstrip(b"\0")
        if not rest:
            return
        position = (place + len(turned) - len(rest)) % len(mask)
        token = 8 * position + (rest[0] & -rest[0]).bit_length() - 1
        if token == end:
            return
        matcher.consume_token(token)


def main() -> int:
    """The process. It ends when its input does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what is pressed on a terminal is meant for the scheduler
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    folder, vocab_size = sys.argv[1:]
    try:
        table = token_table(Path(folder), int(vocab_size))
    except GrammarError as error:
        _say(str(error))
        return 1
    _say(None)
    _limit_memory()
    for line in sys.stdin:
        fields = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        fault = fault_of(table, Grammar(GrammarKind(fields["kind"]), fields["source"]))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(fault)
    return 0


def _say(fault: str | None) -> None:
    sys.stdout.write(json.dumps(fault) + "\n")
    sys.stdout.flush()


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_BYTES,) * 2)


if __name__ == "__main__":
    raise SystemExit(main())
