"""Two libraries that hold an answer to a form, on the schemas of `bench.schemas` and a model's own tokenizer.

python -m bench.structured_output MODEL_FOLDER [--library llguidance|xgrammar]

Prints, for each library (default: both): the time to read the tokenizer; compiling a schema, and a mask, in
microseconds; how many of the schemas it keeps to (it takes the good value, and not the bad one); and what becomes of
the keywords that Citybus refuses: the library refuses them as well, or passes over them. xgrammar is no dependency:
.venv/bin/pip install xgrammar.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from bench.schemas import SUPPORTED, UNSUPPORTED
from common.grammar import Grammar, GrammarKind
from common.matching import check, compiled, token_table


class Follower(Protocol):
    """A schema that is being followed."""

    def mask(self) -> None:
        """Compute which tokens may come next."""

    def accept(self, token: int) -> bool:
        """Go on with a token; False where the schema does not let it."""

    def complete(self) -> bool:
        """Whether the answer may end here."""


Compile = Callable[[str], Follower]
"""Raises whatever the library raises for a schema that it does not support."""


class Llguidance:
    """As Citybus uses it."""

    def __init__(self, table: Any, schema: str) -> None:
        self._matcher = compiled(table, Grammar(GrammarKind.JSON_SCHEMA, schema))

    def mask(self) -> None:
        self._matcher.compute_bitmask()
        check(self._matcher)

    def accept(self, token: int) -> bool:
        return self._matcher.consume_token(token)

    def complete(self) -> bool:
        return self._matcher.is_accepting()


class Xgrammar:
    """With its defaults."""

    def __init__(self, library: Any, compiler: Any, vocab_size: int, schema: str) -> None:
        self._matcher = library.GrammarMatcher(compiler.compile_json_schema(schema))
        self._bits = library.allocate_token_bitmask(1, vocab_size)

    def mask(self) -> None:
        self._matcher.fill_next_token_bitmask(self._bits)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def complete(self) -> bool:
        return bool(self._matcher.is_completed())


def llguidance(folder: Path, vocab_size: int) -> Compile:
    """Its compiler for a model."""
    table = token_table(folder, vocab_size)
    return lambda schema: Llguidance(table, schema)


def xgrammar(folder: Path, vocab_size: int) -> Compile:
    """Its compiler for a model. Without its cache: every schema is met for the first time."""
    try:
        library = importlib.import_module("xgrammar")
    except ModuleNotFoundError:
        raise SystemExit("xgrammar is not installed: .venv/bin/pip install xgrammar, or --library llguidance") from None
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(folder)
    info = library.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    compiler = library.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    return lambda schema: Xgrammar(library, compiler, vocab_size, schema)


def micros(function: Callable[[], Any], into: list[float]) -> Any:
    """What `function` gives; the microseconds it took go `into` a list."""
    started = time.perf_counter_ns()
    result = function()
    into.append((time.perf_counter_ns() - started) / 1e3)
    return result


def follows(follower: Follower, tokens: Sequence[int], masks: list[float]) -> bool:
    """Whether the whole answer is taken, with a mask before every token and at the end."""
    for token in tokens:
        micros(follower.mask, masks)
        if not follower.accept(token):
            return False
    return follower.complete()


def measure(compile_schema: Compile, encode: Callable[[Any], Sequence[int]]) -> dict[str, Any]:
    """The figures of one library."""
    compiling: list[float] = []
    masks: list[float] = []
    kept, wrong = 0, []
    for name, case in SUPPORTED.items():
        try:
            text = json.dumps(case.schema)
            follower = micros(partial(compile_schema, text), compiling)
            good, bad = (
                follows(follower, encode(case.good), masks),
                follows(compile_schema(text), encode(case.bad), masks),
            )
        except Exception as error:  # each library has exceptions of its own
            wrong.append(f"{name}: {type(error).__name__}")
            continue
        kept += good and not bad
        if not good or bad:
            wrong.append(f"{name}: " + ("takes a bad value" if bad else "refuses a good one"))
    return {
        "compile_us": _spread(compiling),
        "mask_us": _spread(masks),
        "kept": f"{kept} of {len(SUPPORTED)}",
        "not_kept": wrong,
        "passed_over": [name for name, (schema, _, _) in UNSUPPORTED.items() if _passes(compile_schema, schema)],
    }


def _passes(compile_schema: Compile, schema: dict[str, Any]) -> bool:
    try:
        compile_schema(json.dumps(schema))
    except Exception:
        return False
    return True


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered)),
        "p99": round(ordered[int(0.99 * (len(ordered) - 1))]),
        "most": round(ordered[-1]),
    }


LIBRARIES = {"llguidance": llguidance, "xgrammar": xgrammar}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--library", choices=LIBRARIES, action="append")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))

    def encode(value: Any) -> Sequence[int]:
        ids: list[int] = tokenizer.encode(json.dumps(value, ensure_ascii=False), add_special_tokens=False).ids
        return ids

    for name in args.library or LIBRARIES:
        reading: list[float] = []
        make = LIBRARIES[name]
        compile_schema = micros(partial(make, args.model, tokenizer.get_vocab_size()), reading)
        figures = {"library": name, "read_tokenizer_ms": round(reading[0] / 1e3), **measure(compile_schema, encode)}
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
