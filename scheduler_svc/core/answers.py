"""Whether what a policy says makes sense."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from itertools import islice

from scheduler_svc.core.policy import SequenceView
from scheduler_svc.core.view import View


class PolicyFault(ValueError):
    """A policy answered nonsense; the message says what."""


def within(answer: int, most: int) -> int:
    """The answer. Raises `PolicyFault` unless it is an int from 0 to `most`."""
    if type(answer) is not int or not 0 <= answer <= most:
        raise PolicyFault(f"expected an int from 0 to {most}")
    return answer


def all_waiting(answer: Iterable[object]) -> list[SequenceView]:
    """The answer as a list. Raises `PolicyFault` unless all wait, each once."""
    order: list[SequenceView] = []
    for view in answer:
        if not isinstance(view, View) or not view.is_waiting:
            raise PolicyFault("it names a sequence that does not wait")
        order.append(view)
    if len({view.sequence_id for view in order}) < len(order):
        raise PolicyFault("it names a sequence twice")
    return order


def sheddable(answer: Iterable[object]) -> list[SequenceView]:
    """The answer as a list. Raises `PolicyFault` unless all wait, have a time limit and have no token yet."""
    views = all_waiting(answer)
    if any(view.deadline is None or view.num_output_tokens for view in views):
        raise PolicyFault("it sheds a request without a time limit, or one that has tokens")
    return views


def some_of(answer: Iterable[SequenceView], choices: ListOf[SequenceView]) -> list[SequenceView]:
    """The answer as a list. Raises `PolicyFault` unless all are of `choices`, each once."""
    views = list(islice(answer, len(choices) + 1))
    known = {id(view) for view in choices}
    if len(views) > len(choices) or not all(id(view) in known for view in views):
        raise PolicyFault("it names a sequence that is not one of the candidates")
    if len({id(view) for view in views}) < len(views):
        raise PolicyFault("it names a sequence twice")
    return views
