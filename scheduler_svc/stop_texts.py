"""Finds stop texts in a stream of characters, and holds back what may still become one.

The automaton of Aho and Corasick (CACM 18(6), 1975): one pass over the characters, whatever the number of stop texts,
so the answer does not depend on how the characters were cut into tokens. Of several matches the one that is complete
first counts, and of those that end at the same character the longest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _State:
    """A prefix of some stop text: `depth` characters long; `fail` is its longest proper suffix that is one too."""

    depth: int
    next: dict[str, _State] = field(default_factory=dict)
    fail: _State | None = None
    match: str | None = None


class StopTexts:
    """Watches one stream for `stops` (none of them empty). `include`: the one that is found belongs to the answer."""

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._start = _build(stops)
        self._include = include
        self._state = self._start
        self._held = ""

    def feed(self, text: str, *, counts: bool = True) -> tuple[str, str | None]:
        """Characters that are certain to belong to the answer, and the stop text that ended it, if one did.

        One that is complete in `text` ends it only where that `counts`. Not to be called again after a match.
        """
        if not self._start.next:
            return text, None
        seen = self._held + text
        for position, character in enumerate(text, len(self._held) + 1):
            self._state = state = self._step(character)
            if counts and state.match is not None:
                return seen[: position if self._include else position - len(state.match)], state.match
        certain = len(seen) - self._state.depth
        self._held = seen[certain:]
        return seen[:certain], None

    def flush(self) -> str:
        """The characters held back: no more will come."""
        return self._held

    def _step(self, character: str) -> _State:
        state: _State | None = self._state
        while state is not None:
            if (following := state.next.get(character)) is not None:
                return following
            state = state.fail
        return self._start


def _build(stops: Sequence[str]) -> _State:
    start = _State(0)
    for stop in stops:
        state = start
        for character in stop:
            state = state.next.setdefault(character, _State(state.depth + 1))
        state.match = stop
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for character, following in state.next.items():
            _link(state, character, following, start)
            queue.append(following)
    return start


def _link(parent: _State, character: str, state: _State, start: _State) -> None:
    """Set the fail link of `state`, which `parent` reaches by `character`; shallower states have theirs."""
    fail = parent.fail
    while fail is not None and character not in fail.next:
        fail = fail.fail
    state.fail = start if fail is None else fail.next[character]
    if state.match is None:
        state.match = state.fail.match
