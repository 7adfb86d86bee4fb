"""Grammars over a model's tokens: what the scheduler tries at its door and what the executor follows are the same.

The limits are counts of work, so that a grammar is taken or refused wherever it is tried. They do not bound time: what
is tried or followed is timed besides.
"""

from __future__ import annotations

import json
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from common.grammar import Grammar, GrammarKind

JSON_SPACE = r"[ \n\t]{0,16}"
"""What may stand between the tokens of a JSON value: bounded, else a model can write spaces for ever."""

_LIMITS = LLParserLimits(
    initial_lexer_fuel=250_000,
    step_lexer_fuel=100_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    max_grammar_size=50_000,
    verbose_errors=False,
)
_MAX_ERROR_CHARACTERS = 300
_DEAD_END = "NoExtension"


class GrammarError(Exception):
    """A grammar that is wrong or too large, or an answer that it does not let go on. Says so in one line."""


def token_table(folder: Path, vocab_size: int) -> LLTokenizer:
    """The bytes of every token of a model folder.

    Raises `GrammarError` where its tokenizer is of a kind for which that cannot be said.
    """
    try:
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        special = [token["id"] for token in json.loads(text)["added_tokens"] if token["special"]]
        # Of the end tokens this library wants one of its own. It ends no answer of ours (`end_token_ids` do) and must
        # not be a text, so any control token will do.
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=special[0] if special else None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GrammarError(f"the tokenizer of this model cannot follow a grammar ({_line(str(error))})") from error


def compiled(table: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """A matcher at the beginning of an answer. Raises `GrammarError`; takes a millisecond as a rule, at most 200."""
    matcher = LLMatcher(table, _library_form(grammar), log_level=0, limits=_LIMITS)
    check(matcher)
    return matcher


def check(matcher: LLMatcher) -> None:
    """Raise `GrammarError` where the matcher cannot go on."""
    if matcher.is_error():
        error = matcher.get_error()
        raise GrammarError("no text of this form goes on from here" if error.startswith(_DEAD_END) else _line(error))


def _library_form(grammar: Grammar) -> str:
    try:
        match grammar.kind:
            case GrammarKind.JSON_SCHEMA:
                return LLMatcher.grammar_from_json_schema(grammar.source, overrides={"whitespace_pattern": JSON_SPACE})
            case GrammarKind.REGEX:
                return LLMatcher.grammar_from_regex(grammar.source)
            case GrammarKind.LARK:
                return LLMatcher.grammar_from_lark(grammar.source)
    except ValueError as error:
        raise GrammarError(_line(str(error))) from error


def _line(message: str) -> str:
    """Without the library's picture of the place, and in one line."""
    return " ".join(message.removesuffix("<non-verbose/>").split())[:_MAX_ERROR_CHARACTERS]
