"""Prompts to measure with: a built-in set, or a file of the user's."""

from __future__ import annotations

import json
from pathlib import Path

_SUBJECTS = (
    "a bus timetable", "the tides", "a bicycle bell", "sourdough bread", "the moon's phases", "a town library",
    "double-entry bookkeeping", "a thunderstorm", "chess openings", "paper recycling", "a lighthouse", "tea",
    "prime numbers", "a wind turbine", "penguins", "the alphabet",
)  # fmt: skip
_TASKS = (
    "Explain {} to a child in two sentences.",
    "Write a haiku about {}.",
    "List three things that most people get wrong about {}, with one sentence on each of them.",
    "You are a patient teacher who answers in plain words and never uses more of them than are needed. A student asks: "
    "why does {} matter, where would I meet it in a day, and what should I read first? Answer all three questions.",
)

BUILT_IN = tuple(task.format(subject) for subject in _SUBJECTS for task in _TASKS)
"""64 prompts of four lengths."""


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a JSON-lines file: the first of `turns`, or `prompt`, or `question` of each line.

    Raises ValueError for a line that has none of them.
    """
    return tuple(_prompt(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def _prompt(entry: dict[str, object]) -> str:
    for key in ("turns", "prompt", "question"):
        value = entry.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str):
            return value
    raise ValueError(f"no turns, prompt or question in a line with {sorted(entry)}")
