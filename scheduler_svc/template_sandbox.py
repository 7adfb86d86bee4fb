"""A Jinja environment for templates that came with a model: sandboxed, and bounded in time and output.

The sandbox keeps a template from reaching into Python; the meter ends one that runs away. Whatever can repeat goes
through the meter: each turn of a loop, each call, each `{{ expression }}`; and so does whatever can grow a value: `*`,
`+`, `**`, `%`, `~`, slices, every filter and every method of a text. What such an operation can make at most is held
against the limit before it is computed in one go; what all of them made is counted, and limited too. Time is processor
time of the rendering thread, so that a busy machine changes no answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from scheduler_svc.template_growth import growth, percent_growth

_MADE_PER_OUTPUT = 4  # an honest template handles each message a few times, and writes it once
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
        self._made = 0
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

    def made(self, value: Any) -> Any:
        """Count what one operation has made, and return it; raises `LimitExceeded` when it is too much in all."""
        self._made += _size(value)
        self.check_size(self._made // _MADE_PER_OUTPUT)
        return value

    def weigh(self, value: Any) -> int:
        """Characters of `value` once it is written. Raises `LimitExceeded` where they are too many."""
        total, left = 0, [value]
        while left:
            self.tick()
            each = left.pop()
            if isinstance(each, Namespace):
                left.append(each._Namespace__attrs)
            elif isinstance(each, Mapping):
                left += [*each.keys(), *each.values()]
            elif isinstance(each, Collection) and not isinstance(each, str | range):
                left += each
            total += 1 + _size(each)
            self.check_size(total)
        return total

    def check_growth(self, name: str, subject: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise `LimitExceeded` where the method or filter `name` could make too much of `subject`."""
        self.check_size(growth(name, subject, tuple(args), kwargs, self.weigh))

    def check_size(self, size: int) -> None:
        """Raise `LimitExceeded` where a value of `size` characters or items would be too large."""
        if size > self.environment.max_characters:
            raise LimitExceeded(f"writes more than {self.environment.max_characters} characters")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Templates get at most `max_seconds` of processor time and `max_characters` of output a rendering."""

    context_class = MeteredContext
    intercepted_binops = frozenset(["*", "+", "**", "%"])

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
        for name, function in list(self.filters.items()):
            self.add_filter(name, function)
        self.filters.update(metered=_metered, metered_join=_metered_join, made=_made)
        del self.globals["lipsum"]

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Let templates use `function`, metered, as the filter `name`."""
        self.filters[name] = _metered_filter(name, function)

    def compile_template(self, source: str) -> Any:
        """The template of `source`, with the meter built in. Raises `jinja2.TemplateSyntaxError`."""
        return self.from_string(_BuildInMeter().visit(self.parse(source)))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        assert isinstance(context, MeteredContext)
        context.tick()
        if operator == "%" and isinstance(left, str):
            context.check_size(percent_growth(left, right, context.weigh))
        else:
            context.check_size(_size_bound(operator, left, right))
        return context.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(__context, MeteredContext)
        __context.tick()
        text = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        if not isinstance(text, str):
            return __context.made(super().call(__context, __obj, *args, **kwargs))
        args = tuple(_metered_items(__context, args))
        __context.check_growth(__obj.__name__, text, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        for part in result if isinstance(result, list | tuple) else [result]:
            __context.made(part)
        return result


class _BuildInMeter(NodeTransformer):
    """Rewrites every loop, every `~` and every slice to go through a metered filter."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered("metered", cast(nodes.Expr, node.iter))
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _filtered("made", node) if isinstance(node.arg, nodes.Slice) else node

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


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `function`, with the meter around it."""
    passes = getattr(function, "jinja_pass_arg", None)

    @pass_context
    def metered(context: MeteredContext, *args: Any, **kwargs: Any) -> Any:
        context.tick()
        subject, *others = args = tuple(_metered_items(context, args)) if name == "join" else args
        context.check_growth(name, subject, others, kwargs)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        leading = [first[passes.name]] if passes is not None else []
        return context.made(function(*leading, *args, **kwargs))

    return metered


def _metered_items(context: MeteredContext, values: Iterable[Any]) -> Iterator[Any]:
    """The values, with what is made as it is asked for made now, so that its size is known."""
    return (list(_metered(context, each)) if isinstance(each, Iterator) else each for each in values)


@pass_context
def _finalize(context: MeteredContext, value: Any) -> str:
    return context.write(value if isinstance(value, str) else _text(context, value))


def _text(context: MeteredContext, value: Any) -> str:
    context.weigh(value)
    return str(value)


@pass_context
def _metered(context: MeteredContext, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        context.tick()
        yield item


@pass_context
def _made(context: MeteredContext, value: Any) -> Any:
    context.tick()
    return context.made(value)


@pass_context
def _metered_join(context: MeteredContext, items: Iterable[Any]) -> str:
    texts = [_text(context, item) for item in items]
    context.check_size(sum(map(len, texts)))
    return cast(str, context.made("".join(texts)))


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
    return len(value) if hasattr(value, "__len__") and not isinstance(value, range) else 0
