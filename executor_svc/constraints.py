"""How far answers have come in their grammars: which tokens may come next.

A state is a function of the tokens of the answer, so it is made anew wherever a sequence enters. Compiling, catching up
and masks are the work of threads, beside the forward pass: a mask is begun when the token before it is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import structlog
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from common.grammar import Grammar
from common.matching import GrammarError, check, compiled, token_table

Mask = NDArray[np.uint32]
"""Which tokens are allowed, [ceil(vocab_size / 32)]: token t is bit t % 32 of word t // 32."""

_MAX_MASK_S = 0.25
"""Processor time that a mask may take: all rows of a step wait for it."""

PATIENCE_S = 10.0
"""Most that a step waits for all of its masks."""

_STUCK = "the answer cannot be held to its form any more, which may be too complex: {}"

log = structlog.get_logger()


class Constraints:
    """Makes the states for the model in `folder`, with `num_threads` threads for all of them.

    Every state compiles its grammar for itself. Copies of a matcher share its lexer, which only grows, and has limits:
    an answer would fail for what another one, of the same grammar, has met.
    """

    def __init__(self, folder: Path, vocab_size: int, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, "grammar")
        self._table = self._threads.submit(token_table, folder, vocab_size)

    def wait_ready(self) -> None:
        """Until the tokens are read. Raises `GrammarError` where this model can follow no grammar."""
        self._table.result()

    def begin(self, grammar: Grammar, answer: Sequence[int]) -> Constraint:
        """The state after the tokens of `answer`. Nothing is waited for here."""
        return Constraint(self._threads, self._table.result, grammar, answer)


class Constraint:
    """The state of one answer; called from one thread."""

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        table: Callable[[], LLTokenizer],
        grammar: Grammar,
        answer: Sequence[int],
    ) -> None:
        self._threads = threads
        self._grammar = grammar
        self._matcher: LLMatcher
        self._control_id: int
        self._error: str | None = None
        self._mask: Future[Mask] = threads.submit(self._catch_up, table, tuple(answer))

    @property
    def has_failed(self) -> bool:
        """Whether the answer cannot go on, as far as was asked."""
        return self._error is not None

    def mask(self, until: float) -> Mask | None:
        """What may come next, once it is known; None where the answer cannot go on, as one whose mask is not known
        when the clock, `time.monotonic`, reads `until`."""
        if self._error is None:
            self._error = self._fault(max(0.0, until - time.monotonic()))
        return self._mask.result() if self._error is None else None

    def advance(self, token: int) -> str | None:
        """The answer goes on with `token`, once its mask was asked for. Returns why it cannot, from then on always the
        same."""
        if self._error is None and token not in self._grammar.end_token_ids:
            self._mask = self._threads.submit(self._follow, (token,))
        return self._error

    def stop(self) -> None:
        """The answer cannot go on: what is allowed next is made impossible by something else."""
        self._error = self._error or "no token is left that both the form of the answer and the other parameters allow"

    def _fault(self, within_s: float) -> str | None:
        """Why the answer cannot go on. Whatever fails in a thread, it must not end the step of the others."""
        try:
            error = self._mask.exception(within_s)
        except TimeoutError:
            self._mask.cancel()
            return _STUCK.format(f"its next token is not known after {PATIENCE_S:g} s")
        if error is None:
            return None
        if isinstance(error, GrammarError):
            return _STUCK.format(error)
        name = type(error).__name__  # its message could quote a request
        log.error("a grammar could not be followed", error=name)
        return _STUCK.format(name)

    def _catch_up(self, table: Callable[[], LLTokenizer], answer: tuple[int, ...]) -> Mask:
        self._control_id = table().eos_token
        self._matcher = compiled(table(), self._grammar)
        return self._follow(answer)

    def _follow(self, tokens: tuple[int, ...]) -> Mask:
        """On a thread, one call after the other: what may come after `tokens`."""
        ends = self._grammar.end_token_ids
        ended = next((index for index, token in enumerate(tokens) if token in ends), None)
        self._matcher.consume_tokens(list(tokens[:ended]))
        started = time.thread_time()
        mask = np.frombuffer(bytearray(self._matcher.compute_bitmask()), np.uint32)
        check(self._matcher)
        if time.thread_time() - started > _MAX_MASK_S:
            raise GrammarError("a token of it takes too long")
        mask[self._control_id // 32] &= ~np.uint32(1 << self._control_id % 32)
        for end in ends if self._matcher.is_accepting() else ():
            mask[end // 32] |= np.uint32(1 << end % 32)
        if not mask.any():
            raise GrammarError("no token of this model can follow")
        return mask
