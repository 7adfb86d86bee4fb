"""A Jinja environment for templates that came with a model: sandboxed, and bounded in time and output.

The sandbox keeps a template from reaching into Python; the meter ends one that runs away. Whatever can repeat goes
through the meter: each turn of a loop, each call, each `{{ expression }}`; and so does whatever can grow a value:
`*`, `+`, `**` and `~`. Time is processor time of the rendering thread, so that a busy machine changes no answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

_TICKS_PER_LOOK = 64  # a look at the clock is a system call


class LimitExceeded(TemplateRuntimeError):
    """The template took longer or wrote more than it may."""


class MeteredContext(Context):
    """The context of one rendering, with what it may still spend."""

    environment: TemplateSandbox

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline = time.thread_time() + self.environment.max_seconds
        self._characters = 0
        self._ticks = 0

    def tick(self) -> None:
        """Count one step; raises `LimitExceeded` when the time is over."""
        self._ticks += 1
        if self._ticks % _TICKS_PER_LOOK == 0 and time.thread_time() > self._deadline:
            raise LimitExceeded(f"takes longer than {self.environment.max_seconds:g} s")

    def write(self, text: str) -> str:
        """Count characters written; raises `LimitExceeded` when they are too many."""
        self.tick()
        self._characters += len(text)
        self.check_size(self._characters)
        return text

    def check_size(self, size: int) -> None:
        """Raise `LimitExceeded` where a value of `size` characters or items would be too large."""
        if size > self.environment.max_characters:
            raise LimitExceeded(f"writes more than {self.environment.max_characters} characters")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Templates get at most `max_seconds` of processor time and `max_characters` of output a rendering."""

    context_class = MeteredContext
    intercepted_binops = frozenset(["*", "+", "**"])

    def __init__(self, max_seconds: float, max_characters: int) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, loopcontrols],
            finalize=_finalize,
            cache_size=0,
        )
        self.max_seconds = max_seconds
        self.max_characters = max_characters
        self.filters.update(metered=_metered, metered_join=_metered_join)
        del self.globals["lipsum"]

    def compile_template(self, source: str) -> Any:
        """The template of `source`, with the meter built in. Raises `jinja2.TemplateSyntaxError`."""
        return self.from_string(_BuildInMeter().visit(self.parse(source)))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        assert isinstance(context, MeteredContext)
        context.tick()
        context.check_size(_size_bound(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(__context, MeteredContext)
        __context.tick()
        return super().call(__context, __obj, *args, **kwargs)


class _BuildInMeter(NodeTransformer):
    """Rewrites every loop and every `~` to go through a metered filter."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered("metered", cast(nodes.Expr, node.iter))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("metered_join", nodes.List(node.nodes, lineno=node.lineno))


class _GenerationBlock(Extension):
    """`{% generation %}`: marks the model's own turns for training; means nothing here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _filtered(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context
def _finalize(context: MeteredContext, value: Any) -> str:
    return context.write(str(value))


@pass_context
def _metered(context: MeteredContext, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        context.tick()
        yield item


@pass_context
def _metered_join(context: MeteredContext, items: Iterable[Any]) -> str:
    texts = list(map(str, items))
    context.check_size(sum(map(len, texts)))
    return "".join(texts)


def _size_bound(operation: str, left: Any, right: Any) -> int:
    """The most characters, items or bits that `left <operation> right` can take."""
    numbers = isinstance(left, int) and isinstance(right, int)
    if operation == "**":
        return left.bit_length() * abs(right) if numbers else 0
    if operation == "+" or numbers:
        return _size(left) + _size(right)
    count, repeated = (left, right) if isinstance(left, int) else (right, left)
    return count * _size(repeated) if isinstance(count, int) else 0


def _size(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if hasattr(value, "__len__") else 0
