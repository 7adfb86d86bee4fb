"""Grammars as protobuf messages, and back."""

from __future__ import annotations

from citybus.executor.v1 import executor_pb2 as pb
from common.grammar import Grammar, GrammarKind
from common.step import InvalidPlan


def grammar_to_pb(grammar: Grammar) -> pb.Grammar:
    """The message for a grammar."""
    message = pb.Grammar(end_token_ids=grammar.end_token_ids)
    setattr(message, grammar.kind.value, grammar.source)
    return message


def grammar_from_pb(message: pb.Grammar) -> Grammar:
    """The grammar in a message. Raises `InvalidPlan` where it has no source."""
    kind = message.WhichOneof("source")
    if kind is None:
        raise InvalidPlan("a grammar has no source")
    return Grammar(GrammarKind(kind), getattr(message, kind), tuple(message.end_token_ids))
